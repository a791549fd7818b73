"""Statements for clients of SQLFlow: its streaming call over gRPC, a process of its own a call."""
