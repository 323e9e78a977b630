"""A picture of a model's architecture, like Figure 1 of the paper."""
