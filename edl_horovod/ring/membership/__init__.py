"""Where a rank learns which ring it is in."""
