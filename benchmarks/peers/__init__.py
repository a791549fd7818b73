"""The other side of each comparison, written as its own documents teach."""
