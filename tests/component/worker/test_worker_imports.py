"""What a worker has imported before it is forked: nothing of it runs, so nothing is cut off."""

import pytest

from tests.frameworks import NEEDS_KERAS, NEEDS_TORCH
from tests.programs import python

JOB = 'JobConfig(task="train", data="d", model_def="m", output="o")'
NOTHING_RUNS = """
import os
from edl_horovod.config.schema import JobConfig
from edl_horovod.worker.__main__ import import_all
import_all(JOB)
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
NOTHING_IS_LEFT_TO_IMPORT = """
import os, sys
from edl_horovod.config.schema import JobConfig
from edl_horovod.worker.__main__ import import_all
import_all(JOB)
import horovod.torch, torch

assert not torch.cuda.is_initialized()
assert not horovod.torch.is_initialized()
imported = set(sys.modules)
torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.1)
print(*set(sys.modules) - imported)
if not (pid := os.fork()):
    os._exit(0)
os.waitpid(pid, 0)
print(len(os.listdir("/proc/self/task")))
"""
NOTHING_IS_HOOKED = """
import gc, sys, typing
def look(event, _):
    if event == "import":
        finders = [*sys.meta_path, *sys.path_hooks]
        hooked.update(repr(it) for it in finders if it.__module__.startswith("edl_"))
        if "compile" in vars(typing):
            hooked.add("compile")
hooked = set()
sys.addaudithook(look)
from edl_horovod.config.schema import JobConfig
from edl_horovod.worker.__main__ import import_all
import_all(JOB)
assert gc.isenabled() and gc.get_freeze_count() > 100_000
print(*sorted(hooked))
"""
IN_A_WORKER = """
from edl_horovod.config.schema import JobConfig
from edl_horovod.worker.__main__ import import_all
import_all(JOB)
WHAT
"""
RELOADED = """
import importlib, requests
requests.get = None
print(importlib.reload(requests).get.__name__)"""
REPLACED = """
import requests
def fake(): ...
requests.get = fake
requests.post
print(requests.get.__name__)"""
# One thread imports a part of the package just when a first use by another one runs the package.
# With a lock of its own besides that of the import, each waits for what the other one holds.
BESIDE_AN_IMPORT = """
import importlib, sys, threading, requests
is_running, is_importing = threading.Event(), threading.Event()
def look(event, args):
    if event == "import" and args[0] == "urllib3":
        is_running.set()
        is_importing.wait(20)
    if event == "import" and args[0] == "requests.certs":
        is_importing.set()
def use():
    requests.get
    is_running.set()
def import_part():
    is_running.wait(20)
    importlib.import_module("requests.certs")
sys.modules.pop("requests.certs", None)
sys.addaudithook(look)
threads = [threading.Thread(target=function, daemon=True) for function in (use, import_part)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(20)
print(*{thread.is_alive() for thread in threads})"""


def _run(code, job=JOB):
    return python(code.replace("JOB", job), OMP_NUM_THREADS="2")


@pytest.mark.long
@NEEDS_KERAS
def test_no_thread_runs_and_nothing_is_initialised():
    assert _run(NOTHING_RUNS) == "1\n"


@pytest.mark.long
@NEEDS_TORCH
def test_an_optimizer_of_pytorch_imports_nothing_more_and_nothing_runs():
    in_torch = JOB.replace("task=", 'framework="torch", task=')
    assert _run(NOTHING_IS_LEFT_TO_IMPORT, job=in_torch) == "\n1\n"


@pytest.mark.long
@NEEDS_KERAS
def test_no_import_goes_through_anything_of_ours():
    assert _run(NOTHING_IS_HOOKED).split() == []


@pytest.mark.long
@NEEDS_KERAS
@pytest.mark.parametrize(
    ("code", "printed"),
    [
        ("import tensorflow.lite as l; print(l.TFLiteConverter.__name__)", "TFLiteConverterV2"),
        (REPLACED, "fake"),
        (RELOADED, "get"),
        (BESIDE_AN_IMPORT, "False"),
    ],
    ids=["submodule", "replaced function", "reload", "two threads"],
)
def test_imports_of_user_code_in_a_worker_are_those_of_any_process(code, printed):
    assert _run(IN_A_WORKER.replace("WHAT", code)).split() == [printed]
