"""ElasticDL's layers and feature columns on Keras 3."""
