"""Horovod with MPI whose Gloo cannot start: is MPI finalised?

Run as a program; it prints how `hvd.init()` ended, and what MPI says of itself.
"""

import os
import sys

from tests.parallel.ring_framework import plain_horovod


def main():
    hvd = plain_horovod()
    if not hvd.mpi_built():
        sys.stdout.write("no MPI\n")
        return
    os.environ.update(
        HOROVOD_CONTROLLER="mpi", HOROVOD_CPU_OPERATIONS="gloo", HOROVOD_GLOO_IFACE="none-such"
    )
    try:
        hvd.init()
        end = "started"
    except ValueError:
        end = "failed"
    hvd.shutdown()
    import mpi4py

    mpi4py.rc.initialize = mpi4py.rc.finalize = False
    from mpi4py import MPI

    is_final = MPI.Is_initialized() and MPI.Is_finalized()
    sys.stdout.write(f"{end} {'finalised' if is_final else 'not finalised'}\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
