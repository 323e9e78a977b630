"""What a run costs: memory, operations, time."""
