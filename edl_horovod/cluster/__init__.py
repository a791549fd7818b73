"""The part that knows Kubernetes; only `client` imports its library."""
