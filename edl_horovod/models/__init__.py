"""Whatever a user calls a model becomes an `ElasticDLSpec` here."""
