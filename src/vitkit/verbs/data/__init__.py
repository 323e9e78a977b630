"""Verbs that are about data sets."""
