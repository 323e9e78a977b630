"""Many runs as one: a grid of recipes, and the protocols that are grids."""

from vitkit.studies.cell import Cell, Measurement
from vitkit.studies.grid import run_grid
from vitkit.studies.rows import Row, read_rows
from vitkit.studies.selecting import select
from vitkit.studies.transfer import Transfer, transfer

__all__ = ["Cell", "Measurement", "Row", "Transfer", "read_rows", "run_grid", "select", "transfer"]
