"""Masks: a class for every pixel of an image, from files whose values or colours a legend explains."""
