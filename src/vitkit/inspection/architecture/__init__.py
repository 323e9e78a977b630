"""A model's architecture as a picture, as Figure 1 of the paper has it."""
