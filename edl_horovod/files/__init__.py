"""Files that appear whole, or not at all, and markers that say whose a folder is."""
