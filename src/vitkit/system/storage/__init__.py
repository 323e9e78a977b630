"""Files and remote addresses: whole or not at all."""
