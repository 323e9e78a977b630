"""Hugging Face: Vision Transformers, and their image processors."""
