"""Verbs that run many measurements: the suites, and the studies of the paper."""
