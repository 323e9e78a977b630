"""What is drawn for each image of an epoch: crops, colours, mixing, masks."""
