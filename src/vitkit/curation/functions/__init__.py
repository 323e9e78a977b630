"""The functions of the commands that look after data."""
