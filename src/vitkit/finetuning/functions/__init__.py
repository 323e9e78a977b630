"""The function of `vitkit finetune`, and its result."""
