"""Arrays and images as pictures."""
