"""Several trainings, one after another."""
