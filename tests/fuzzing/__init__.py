"""Damaged files, by the thousand: whatever is in a file, an answer or one sentence comes out.

`python -m fuzzing --seconds 300` (from tests/) or `make fuzz`. `mutations.py` damages bytes and
JSON, `subjects.py` says which files and what is done with them, `attempt.py` runs one attempt in a
process of its own, within limits of time and memory.
"""
