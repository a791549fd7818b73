"""What a worker has imported before it is forked: nothing of it runs, so nothing is cut off."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
import typing
assert not hasattr(typing, "compile")
late = {"sklearn", "matplotlib", "scipy", "IPython.core", "urllib3", "tensorflow.lite.python.lite"}
print(*sorted(late & set(sys.modules)))
import keras, tensorflow as tf
print(keras.wrappers.SKLearnClassifier.__name__, keras.visualization.plot_image_gallery.__name__)
print(tf.lite.Optimize.__name__, tf.compat.v1.lite.TFLiteConverter.__name__)
print(*sorted({"sklearn", "matplotlib", "tensorflow.lite.python.lite"} & set(sys.modules)))
"""
A_PACKAGE = """
import concurrent.futures, threading
from edl_horovod.quick_import import put_off_what_is_rarely_used
put_off_what_is_rarely_used()
import sys, requests
assert "requests.models" not in sys.modules
WHAT
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
        "Optimize TFLiteConverter",
        "matplotlib sklearn tensorflow.lite.python.lite",
    ]


@pytest.mark.parametrize(
    "what",
    [
        "print(requests.get.__name__)",
        "from requests import get; print(get.__name__)",
        "from requests import *; print(get.__name__)",
        "requests.__version__; print(vars(requests)['get'].__name__)",
        # What is in a package finds the package run, as everywhere.
        "from requests.api import get; print(vars(requests)['get'].__name__)",
        # Nothing of it is run for what its loader can tell.
        "import pkgutil; assert pkgutil.get_data('requests', '__init__.py'); "
        "assert 'requests.models' not in sys.modules; print(requests.get.__name__)",
        # All see it whole, who asks while another thread runs it, too.
        """
gate = threading.Barrier(8)
def ask(_):
    gate.wait()
    return requests.get.__name__
print(*set(concurrent.futures.ThreadPoolExecutor(8).map(ask, range(8))))""",
    ],
)  # fmt: skip
def test_a_package_that_was_put_off_is_run_by_any_use_of_it(what):
    assert _run(A_PACKAGE.replace("WHAT", what)) == "get\n"


def test_a_name_that_a_module_has_not_is_told_as_always():
    assert _run(A_PACKAGE.replace("WHAT", "print(hasattr(requests, 'gat'))")) == "False\n"
