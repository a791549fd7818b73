"""What a ring is formed for: train, evaluate, predict."""
