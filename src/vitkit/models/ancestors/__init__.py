"""Models that came before ViT, or beside it: ResNets and the stems of hybrids, LeNet, axial and
local attention."""
