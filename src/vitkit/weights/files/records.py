"""PyTorch's ZIP archives before torch reads them.

torch maps the records of an archive from the disk and believes them: it takes compressed numbers
for numbers, and no checksum is compared.
"""

import os
import struct
import zipfile
from pathlib import Path

HEADER = 30  # bytes before a record's name; the last four are the lengths of what follows
ENCRYPTED = 1  # bit of a record's flags
# How a pickle spells bytearray(n), which torch's restricted unpickler calls: n bytes of memory for
# ten bytes of file. No file of weights has one.
BYTEARRAY = b"\nbytearray\n"


def check_records(file: Path) -> None:
    """Raises ValueError for an archive whose records are compressed, damaged or there twice.

    Every byte is read for it. Archives without any checksum are believed, for torch can be told to
    write none.
    """
    with zipfile.ZipFile(file) as archive:
        records = archive.infolist()
        if len({record.filename for record in records}) < len(records):
            raise ValueError("it holds two records of the same name")
        for record in records:
            if record.compress_type != zipfile.ZIP_STORED or record.flag_bits & ENCRYPTED:
                raise ValueError(
                    f"its record {record.filename} is compressed or encrypted, and PyTorch would "
                    "take that for the numbers themselves; save it again with torch.save"
                )
        has_checksums = any(record.CRC for record in records)
        damaged = archive.testzip() if has_checksums else None
        if damaged:
            raise ValueError(
                f"its record {damaged} is damaged: its checksum is another; download it again"
            )
        for record in records:
            if record.filename.endswith(".pkl"):
                check_pickle(_content(file, record))


def _content(file: Path, record: zipfile.ZipInfo) -> bytes:
    """The bytes of a record that is not compressed, whatever its checksum."""
    with file.open("rb") as opened:
        opened.seek(record.header_offset)
        header = opened.read(HEADER)
        name_length, extra_length = struct.unpack("<HH", header[-4:])
        opened.seek(name_length + extra_length, os.SEEK_CUR)
        return opened.read(record.file_size)


def check_pickle(data: bytes) -> None:
    """Raises ValueError for a pickle that takes more memory than it has bytes."""
    if BYTEARRAY in data:
        raise ValueError("it holds the Python object bytearray, which is no part of a model")
