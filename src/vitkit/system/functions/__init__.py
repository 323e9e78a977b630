"""Common parts of the commands' functions: their calls, parameters and results."""
