"""Batches in the order of an epoch, prepared by other processes."""
