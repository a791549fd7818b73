"""Read and write model files of Keras and TensorFlow."""
