"""What ElasticDL's model files use besides the names of a model, on Keras 3."""
