"""Files and remote addresses, written completely or not at all."""
