"""Evaluators, and figures with a unit and an interval."""
