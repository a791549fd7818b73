"""What runs on every rank: membership, state, the run loop, checkpoints."""
