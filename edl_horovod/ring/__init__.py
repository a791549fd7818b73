"""What runs on every rank: world, membership, state, the run loop, checkpoints."""
