"""The functions of the commands that maintain data sets."""
