"""How images become batches quickly: worker processes, decoding, what stays in memory."""
