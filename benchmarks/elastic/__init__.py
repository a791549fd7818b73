"""What changes of a ring cost, beside plain elastic Horovod and TorchElastic."""
