"""What came before, and beside: ResNets and the stems of hybrids, LeNet, axial and local attention."""
