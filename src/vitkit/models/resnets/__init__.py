"""resnets."""
