"""Pages of HTML that need no other file."""
