"""Many runs as one: a grid of recipes, and the protocols that are grids (selection, transfer)."""
