"""What edl_horovod costs and gains, measured against its neighbours; run `python -m benchmarks`."""
