"""The tasks of a job: train, evaluate, predict."""
