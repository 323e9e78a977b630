"""Grids: many runs in one directory, and the protocols that consist of them (selection, transfer)."""
