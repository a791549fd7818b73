"""What a worker's fork server and its launcher agree on."""

__all__ = ["MAX_REQUEST_BYTES", "READY"]

READY = b"ready"
"""What the server says first, when everything is imported."""
MAX_REQUEST_BYTES = 1 << 16
