"""The records of a run: settings, metrics, machine."""
