"""The process of one rank."""
