"""The state of a run, and checkpoints: written atomically, continued exactly."""
