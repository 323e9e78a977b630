"""The processes of a run, their signals, and a watchdog over them."""
