"""BiT ResNets, and the stem of the hybrids."""
