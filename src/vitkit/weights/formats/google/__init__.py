"""Google's .npz files: Vision Transformers, hybrids and BiT ResNets."""
