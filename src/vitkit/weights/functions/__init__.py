"""The functions of the commands for files of models, and for the list of models."""
