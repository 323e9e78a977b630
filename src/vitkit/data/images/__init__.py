"""From the bytes of an untrusted file to pixels of the size that a model reads."""
