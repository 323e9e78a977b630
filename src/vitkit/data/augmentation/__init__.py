"""Random changes of each image of an epoch: crops, colours, mixing, masks."""
