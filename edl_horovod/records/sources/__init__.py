"""Formats that records are read from."""
