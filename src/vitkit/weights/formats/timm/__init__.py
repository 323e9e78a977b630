"""timm's Vision Transformers, hybrids and BiT ResNets."""
