"""What a run writes of itself: settings, metrics, machine, names."""
