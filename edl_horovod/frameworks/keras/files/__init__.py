"""Models of Keras and TensorFlow that lie in files."""
