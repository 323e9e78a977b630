"""What features are worth: closed forms, few shots, neighbours, memories that learn."""
