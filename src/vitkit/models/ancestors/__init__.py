"""What came before, and beside: LeNet, axial and local attention."""
