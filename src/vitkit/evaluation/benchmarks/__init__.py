"""Data sets with rules of their own: ImageNet's, ReaL, ObjectNet, ImageNet-C."""
