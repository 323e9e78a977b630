"""Verbs about this machine: how fast it is, and what is wrong."""
