"""The frameworks that models are written in; only a framework's own folder imports it."""
