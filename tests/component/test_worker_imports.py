"""What a worker has imported before it is forked: nothing of it runs, so nothing is cut off."""

import os
import subprocess
import sys
from pathlib import Path

import edl_horovod

ROOT = str(Path(edl_horovod.__file__).parent.parent)
NOTHING_RUNS = """
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


LEFT_OUT = """
import gc, inspect, sys
from edl_horovod import worker
worker._import_all()
assert gc.isenabled() and gc.get_freeze_count() > 100_000
inspect.getmodule(worker.main)  # As every process does when TensorFlow first converts a function.
print(*sorted({"sklearn", "matplotlib"} & set(sys.modules)))
import keras
print(keras.wrappers.SKLearnClassifier.__name__, keras.visualization.plot_image_gallery.__name__)
print(*sorted({"sklearn", "matplotlib"} & set(sys.modules)))
"""


def _run(code):
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "PYTHONPATH": ROOT, "OMP_NUM_THREADS": "2"},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_no_thread_runs_and_nothing_is_initialised():
    assert _run(NOTHING_RUNS) == "1\n"


def test_what_hardly_any_training_uses_is_imported_when_it_is_used():
    assert _run(LEFT_OUT).splitlines() == [
        "",
        "SKLearnClassifier plot_image_gallery",
        "matplotlib sklearn",
    ]
