"""The job page: a job as its events, and in a cluster its pods, show it."""
