"""Benchmarks: data sets with their own evaluation protocol, such as ImageNet's, ReaL, ObjectNet, ImageNet-C."""
