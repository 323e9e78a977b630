"""What a run writes about itself: settings, metrics, machine."""
