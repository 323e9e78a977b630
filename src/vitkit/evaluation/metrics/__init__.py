"""Evaluators, and metrics with a unit and a confidence interval."""
