"""The recipe of our Horovod: its patches, and the build of its wheel."""
