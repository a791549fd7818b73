"""Records: their files, their numbers, their order, and the way into TensorFlow."""
