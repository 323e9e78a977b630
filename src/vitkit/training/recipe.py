"""The names of recipes where files of recipes written before import them from: `vitkit.recipes` has them."""
