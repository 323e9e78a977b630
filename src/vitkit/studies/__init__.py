"""Protocols of several runs: they call train() many times."""

from vitkit.studies.transfer import Transfer, select, transfer

__all__ = ["Transfer", "select", "transfer"]
