"""The launcher of one job: starts its processes on this machine, keeps them and ends them."""
