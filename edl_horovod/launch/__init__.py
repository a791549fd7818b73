"""Launch targets, the places where jobs run, and the client for launched jobs."""
