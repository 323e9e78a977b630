"""How good features are: closed forms, few-shot classifiers, neighbours, memories that learn."""
