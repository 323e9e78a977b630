"""Damage that keeps the grammar of a file: what is wrong lies deeper than where a reader first looks.

Each function takes the bytes of a whole file and returns such bytes. A file that is not of its
grammar any more raises ValueError or its like; `mutations.damage` then damages its bytes.
"""

import html
import json
import re
import struct
import zlib
from collections.abc import Callable
from random import Random

from fuzzing.mutations import NUMBERS, damaged_bytes, damaged_json

PNG = b"\x89PNG\r\n\x1a\n"
TIFF_TYPES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 11: 4, 12: 8, 13: 4, 16: 8}  # bytes of a value
TIFF_TAGS = (254, 256, 257, 258, 259, 262, 266, 273, 274, 277, 278, 279, 284, 317, 320, 322, 323)
TIFF_TAGS += (324, 325, 330, 338, 339, 347, 513, 530, 700, 34675, 42113)
TAR_BLOCK = 512
TAR_FIELDS = {"name": (0, 100), "mode": (100, 8), "size": (124, 12), "type": (156, 1)}
TAR_FIELDS |= {"link": (157, 100), "magic": (257, 8), "prefix": (345, 155)}
TAR_WORDS = (b"\0", b"77777777777", b"-1", b"\xff" * 12, b"\x80" + b"\0" * 7 + b"\x7f", b"../../x")
TAR_WORDS += (
    b"/etc/passwd",
    b"x" * 155,
    b"1",
    b"2",
    b"5",
    b"L",
    b"x",
    b"g",
    b"S",
    b"9",
    b"00000000010",
)
NPY_SHAPES = (
    "()",
    "(0,)",
    "(-1,)",
    "(1000000000000,)",
    "(2, 2)",
    "(True,)",
    "(1.5,)",
    "(" + "1," * 70 + ")",
)
NPY_TYPES = (
    "'|O'",
    "'<f2'",
    "'<U9'",
    "'V8'",
    "[('a', '<f4')]",
    "'<f16'",
    "'x'",
    "None",
    "'<c8'",
    "'>f4'",
)


def png(data: bytes, random: Random) -> bytes:
    """A chunk that is gone, doubled, moved or damaged, under a checksum that is right."""
    chunks = _chunks(data)
    at = random.randrange(len(chunks))
    kind, content = chunks[at]
    accident = random.choice(
        ("damage", "damage", "inside", "number", "remove", "twice", "move", "kind")
    )
    if accident == "damage":
        chunks[at] = (kind, damaged_bytes(content, random))
    elif accident == "inside":  # the pixels, before they were compressed
        at = next(i for i, (kind, _) in enumerate(chunks) if kind == b"IDAT")
        pixels = damaged_bytes(zlib.decompress(chunks[at][1]), random)
        chunks[at] = (b"IDAT", zlib.compress(pixels))
    elif accident == "number":
        chunks[0] = (b"IHDR", _with_number(chunks[0][1], random))
    elif accident == "remove":
        del chunks[at]
    elif accident == "twice":
        chunks.insert(at, chunks[at])
    elif accident == "move":
        chunks.insert(random.randrange(len(chunks)), chunks.pop(at))
    else:
        others = (b"PLTE", b"tRNS", b"acTL", b"fcTL", b"fdAT", b"eXIf", b"iCCP", b"zTXt", b"IEND")
        chunks[at] = (random.choice(others), content)
    parts = [PNG]
    for kind, content in chunks:
        parts.append(struct.pack(">I", len(content)) + kind + content)
        parts.append(struct.pack(">I", zlib.crc32(kind + content)))
    return b"".join(parts)


def _chunks(data: bytes) -> list[tuple[bytes, bytes]]:
    """The kind and the content of each."""
    chunks = []
    at = len(PNG)
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        chunks.append((kind, data[at + 8 : at + 8 + length]))
        at += length + 12
    return chunks


def _with_number(content: bytes, random: Random) -> bytes:
    """A telling number somewhere, or a byte of another value."""
    at = random.randrange(len(content))
    if random.random() < 0.5:
        return content[:at] + bytes([random.randrange(256)]) + content[at + 1 :]
    number = struct.pack(">I", min(random.choice(NUMBERS), 2**32 - 1))
    return (content[:at] + number + content[at + 4 :])[: len(content)]


def tiff(data: bytes, random: Random) -> bytes:
    """One to three entries of a directory with another tag, type, count or value."""
    order = "<" if data[:2] == b"II" else ">"
    is_big = data[2:4] in (b"+\0", b"\0+")
    place_form, count_form, entry = (
        (f"{order}Q", f"{order}Q", 20) if is_big else (f"{order}I", f"{order}H", 12)
    )
    (place,) = struct.unpack_from(place_form, data, 8 if is_big else 4)
    (count,) = struct.unpack_from(count_form, data, place)
    start = place + struct.calcsize(count_form)
    damaged = bytearray(data)
    for _ in range(random.randint(1, 3)):
        at = start + entry * random.randrange(count)
        what = random.choice(("value", "value", "value", "tag", "type", "count", "next"))
        if what == "tag":
            struct.pack_into(f"{order}H", damaged, at, random.choice(TIFF_TAGS))
        elif what == "type":
            struct.pack_into(f"{order}H", damaged, at + 2, random.choice((*TIFF_TYPES, 0, 7, 99)))
        elif what == "count":
            _pack(damaged, place_form, at + 4, random)
        elif what == "next":
            _pack(damaged, place_form, start + entry * count, random)
        else:
            (kind,) = struct.unpack_from(f"{order}H", damaged, at + 2)
            form = f"{order}H" if kind == 3 else place_form
            _pack(damaged, form, at + entry - struct.calcsize(place_form), random)
    return bytes(damaged)


def _pack(damaged: bytearray, form: str, at: int, random: Random) -> None:
    """A telling number, or a small one."""
    largest = 2 ** (8 * struct.calcsize(form)) - 1
    number = random.choice((*NUMBERS, *range(40), len(damaged) - 1, len(damaged), 3 * len(damaged)))
    struct.pack_into(form, damaged, at, min(number, largest))


def safetensors(data: bytes, random: Random) -> bytes:
    """Another header, of the length that stands before it; or a tensor of another shape or type whose
    place, length and neighbours all fit it."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    numbers = data[8 + length :]
    if random.random() < 0.4:
        text = damaged_json(data[8 : 8 + length], random)
        return len(text).to_bytes(8, "little") + text + numbers

    names = [name for name in header if name != "__metadata__"]
    chosen = random.choice(names)
    parts = {}
    for name in names:
        begin, end = header[name]["data_offsets"]
        parts[name] = numbers[begin:end]
    shape = header[chosen]["shape"]
    accident = random.choice(("shape", "type", "remove", "rename", "numbers"))
    if accident == "remove":
        del parts[chosen], header[chosen]
    elif accident == "rename":
        renamed = random.choice((chosen + "x", "head.weight", "", "a" * 10_000, "\u202e"))
        parts[renamed] = parts.pop(chosen)
        header[renamed] = header.pop(chosen)
    elif accident == "type":
        header[chosen]["dtype"], size = random.choice(
            (("I64", 8), ("U8", 1), ("BOOL", 1), ("F64", 8), ("F8_E4M3", 1), ("F16", 2))
        )
        count = len(parts[chosen]) // 4
        parts[chosen] = bytes(count * size)
    elif accident == "numbers":
        telling = (
            b"\0\0\xc0\x7f",
            b"\0\0\x80\x7f",
            b"\xff\xff\x7f\x7f",
            b"\1\0\0\0",
        )  # NaN, infinity ...
        parts[chosen] = random.choice(telling) * (len(parts[chosen]) // 4)
    else:
        another = random.choice(
            ([], [0], [*shape, 1], shape[::-1], [1] * 70, [n + 1 for n in shape], shape[:-1])
        )
        header[chosen]["shape"] = another
        count = 1
        for n in another:
            count *= n
        parts[chosen] = (parts[chosen] * (count * 4 // max(len(parts[chosen]), 1) + 1))[: count * 4]
    at = 0
    for name, part in parts.items():
        header[name]["data_offsets"] = [at, at + len(part)]
        at += len(part)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + b"".join(parts.values())


def tar(data: bytes, random: Random) -> bytes:
    """A member's head with another size, name, kind or link, and the checksum of that."""
    heads = []
    at = 0
    while data[at : at + 1] not in (b"", b"\0"):
        heads.append(at)
        size = int(data[at + 124 : at + 136].strip(b"\0 "), 8)
        at += TAR_BLOCK + -(-size // TAR_BLOCK) * TAR_BLOCK
    at = random.choice(heads)
    head = bytearray(data[at : at + TAR_BLOCK])
    for _ in range(random.randint(1, 2)):
        start, length = TAR_FIELDS[random.choice(tuple(TAR_FIELDS))]
        word = random.choice(TAR_WORDS)[:length]
        head[start : start + length] = word.ljust(length, b"\0")
    head[148:156] = b" " * 8
    head[148:156] = f"{sum(head):06o}\0 ".encode()
    return data[:at] + bytes(head) + data[at + TAR_BLOCK :]


def npy(data: bytes, random: Random) -> bytes:
    """An array that says another shape, type or order of itself, in a header of the right length."""
    length = int.from_bytes(data[8:10], "little")
    words = data[10 : 10 + length].decode("latin-1")
    shape = words[words.index("(") : words.index(")") + 1]
    kind = words[words.index("'descr': ") + 9 : words.index(", 'fortran")]
    accident = random.choice(("shape", "type", "order"))
    if accident == "shape":
        words = words.replace(shape, random.choice(NPY_SHAPES))
    elif accident == "type":
        words = words.replace(kind, random.choice(NPY_TYPES))
    else:
        words = words.replace("False", random.choice(("True", "None", "[" * 200)))
    text = words.encode("latin-1")
    return data[:8] + len(text).to_bytes(2, "little") + text + data[10 + length :]


def riff(data: bytes, random: Random) -> bytes:
    """WebP: a chunk that is damaged or doubled, its size and the file's as they should be."""
    chunks = []
    at = 12
    while at + 8 <= len(data):
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        chunks.append((data[at : at + 4], data[at + 8 : at + 8 + size]))
        at += 8 + size + size % 2
    at = random.randrange(len(chunks))
    kind, content = chunks[at]
    if random.random() < 0.3:
        chunks.insert(
            random.randrange(len(chunks) + 1),
            (random.choice((kind, b"VP8X", b"ANIM", b"ALPH")), content),
        )
    else:
        chunks[at] = (kind, damaged_bytes(content, random))
    body = b""
    for kind, content in chunks:
        body += kind + len(content).to_bytes(4, "little") + content + bytes(len(content) % 2)
    return b"RIFF" + (len(body) + 4).to_bytes(4, "little") + b"WEBP" + body


def http(data: bytes, random: Random) -> bytes:
    """A request whose body is damaged as its kind may be, and announced as long as it is."""
    head, _, body = data.partition(b"\r\n\r\n")
    if random.random() < 0.25:
        head = damaged_bytes(head, random)
    elif b"json" in head and random.random() < 0.8:
        body = damaged_json(body, random)
    elif b"png" in head and random.random() < 0.5:
        body = png(body, random)
    else:
        body = damaged_bytes(body, random)
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"content-length")]
    lines.append(f"Content-Length: {len(body)}".encode())
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def onnx(data: bytes, random: Random) -> bytes:
    """A model that says other things of itself, or whose graph is another, and still a message."""
    import onnx as library
    from google.protobuf.message import DecodeError

    model = library.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        raise ValueError(str(error)) from None
    graph = model.graph
    accident = random.choice(
        ("metadata", "metadata", "metadata", "tensor", "node", "attribute", "input")
    )
    if accident == "metadata":
        entry = next(each for each in model.metadata_props if each.key == "vitkit")
        entry.value = damaged_json(entry.value.encode(), random).decode()
    elif accident == "tensor":
        tensor = random.choice(graph.initializer)
        if tensor.dims and random.random() < 0.5:
            tensor.dims[random.randrange(len(tensor.dims))] = random.choice(
                (0, 1, -1, 7, 2**31, 2**62)
            )
        elif random.random() < 0.5:
            tensor.data_type = random.randrange(24)
        else:
            tensor.raw_data = damaged_bytes(tensor.raw_data, random)
    elif accident == "node":
        node = random.choice(graph.node)
        what = random.choice(("remove", "kind", "input", "twice"))
        if what == "remove":
            graph.node.remove(node)
        elif what == "kind":
            node.op_type = random.choice(graph.node).op_type
        elif what == "input" and node.input:
            node.input[random.randrange(len(node.input))] = random.choice(
                random.choice(graph.node).output
            )
        else:
            graph.node.append(node)
    elif accident == "attribute":
        with_attributes = [node for node in graph.node if node.attribute]
        attribute = random.choice(random.choice(with_attributes).attribute)
        attribute.i = random.choice((0, -1, 1, 5, 2**31, -(2**62)))
        for at in range(len(attribute.ints)):
            attribute.ints[at] = random.choice((0, -1, 1, 5, 2**31))
    else:
        dimension = graph.input[0].type.tensor_type.shape.dim
        dimension[random.randrange(len(dimension))].dim_value = random.choice((0, 1, 5, 2**31, -1))
    return model.SerializeToString()


def xml(data: bytes, random: Random) -> bytes:
    """Attributes with other values: telling numbers, those of other attributes, or what a model says of
    itself, damaged as JSON."""
    for _ in range(random.randint(1, 3)):
        values = list(re.finditer(rb'"([^"]*)"', data))
        chosen = random.choice(values)
        if random.random() < 0.3:
            chosen = max(values, key=lambda value: len(value[1]))
            said = html.unescape(chosen[1].decode())
            new = html.escape(damaged_json(said.encode(), random).decode()).encode()
        else:
            telling = [str(number).encode() for number in NUMBERS]
            new = random.choice((*telling, b"-1", b"", b"x", b"NaN", random.choice(values)[1]))
        data = data[: chosen.start(1)] + new + data[chosen.end(1) :]
    return data


GRAMMARS: tuple[tuple[tuple[bytes, ...], Callable[[bytes, Random], bytes]], ...] = (
    ((PNG,), png),
    ((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"), tiff),
    ((b"\x93NUMPY",), npy),
    ((b"RIFF",), riff),
    ((b"POST ",), http),
)
"""By how a file begins."""
BY_NAME = {".safetensors": safetensors, ".tar": tar, ".onnx": onnx, ".xml": xml}
"""By how its name ends."""
