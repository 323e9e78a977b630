"""The functions of the commands that measure a model."""
