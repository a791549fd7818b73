"""Where jobs run: launch targets, each found by its name."""
