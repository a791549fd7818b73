"""A model file that cannot be loaded."""

raise RuntimeError("this file is broken on purpose")
