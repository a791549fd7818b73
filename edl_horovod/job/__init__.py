"""A job as data: its directory, its events, its state."""
