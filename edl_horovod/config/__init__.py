"""The settings of a job: schema, composing, the resolved file, parameter strings."""
