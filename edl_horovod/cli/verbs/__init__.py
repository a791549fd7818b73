"""The verbs: one module for each verb, or for several on one subject."""
