"""augmentation."""
