"""JSON files that carry their own checksum, so that a damaged one is noticed."""

import hashlib
import json
from pathlib import Path

SEAL = "checksum"  # the key of the checksum of all the others


def sealed(values: dict) -> str:
    """The values as JSON text, with their checksum."""
    return json.dumps(values | {SEAL: _checksum(values)}, indent=1)


def read_sealed(path: Path) -> dict:
    """The values that were sealed. Raises OSError, and ValueError if they are not as they were
    written."""
    values = json.loads(path.read_bytes())
    if not isinstance(values, dict) or values.pop(SEAL, None) != _checksum(values):
        raise ValueError(f"the checksum of {path.name} does not fit")
    return values


def _checksum(values: dict) -> str:
    text = json.dumps(values, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
