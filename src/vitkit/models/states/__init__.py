"""Hidden states and attention weights of a forward pass."""
