"""Verbs that are about models as files, and in lists."""
