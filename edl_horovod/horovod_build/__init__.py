"""Our build of Horovod: what it changes, and the wheel for an environment."""
