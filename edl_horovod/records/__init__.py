"""Records: where they come from, their numbers, their order, and the records of a step."""
