"""The functions of the commands that classify images, and what they share."""
