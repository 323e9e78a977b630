"""Mutation testing: would the quick tests notice if a line were wrong?

`python -m mutants --count 300 --seed 0` (from tests/). `changes.py` makes one thing wrong,
`noticing.py` runs the tests that execute that line in a fork of this process, which has imported
PyTorch and its like once, and `__main__.py` draws the places from all files of src/vitkit, and writes
down what no test noticed. Nothing in the source is changed.
"""
