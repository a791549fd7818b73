"""Our side of each comparison: the real job, its input alone, its step alone."""
