"""Find a user's model in any of the supported styles, and turn it into an `ElasticDLSpec`."""
