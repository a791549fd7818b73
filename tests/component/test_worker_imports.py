"""What a worker has imported before it is forked: nothing of it runs, so nothing is cut off."""

import os
import subprocess
import sys
from pathlib import Path

import edl_horovod

CODE = """
import os
from edl_horovod import worker
worker._import_all()
import horovod.tensorflow
from tensorflow.python.eager import context

assert not context.context()._initialized
assert not horovod.tensorflow.is_initialized()
# The C library calls OpenBLAS before a fork, which then ends its threads.
if not (pid := os.fork()):
    os._exit(0)
os.waitpid(pid, 0)
print(len(os.listdir("/proc/self/task")))
"""


def test_no_thread_runs_and_nothing_is_initialised():
    root = str(Path(edl_horovod.__file__).parent.parent)
    run = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "2"},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert run.stdout == "1\n"
