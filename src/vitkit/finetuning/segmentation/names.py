"""The metrics of masks in words."""

METRICS = {
    "miou": "mean IoU",
    "dice": "mean Dice",
    "pixel_accuracy": "accuracy of pixels",
    "boundary_iou": "mean boundary IoU",
    "image_miou": "mean IoU of an image",
    "image_miou_worst_tenth": "mean IoU of the worst tenth of the images",
}
