"""From the bytes of a file, not trusted, to pixels of the size that a model reads."""
