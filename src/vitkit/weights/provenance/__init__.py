"""Where weights come from: licence, description, card."""
