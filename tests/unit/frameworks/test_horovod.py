"""What the adapter makes of Horovod's and Gloo's own words.

The texts are those of Horovod 0.28.1 with TensorFlow 2.21, said by the failures that
`tests/parallel/real_failures.py` makes and, where a link is cut, by `tests/netns`.
"""

import _ctypes
import os
import threading
from types import SimpleNamespace
from unittest import mock

import pytest
from horovod.common.exceptions import HorovodInternalError

from edl_horovod.errors import ConfigError
from edl_horovod.frameworks.base import CollectiveFailed
from edl_horovod.frameworks.horovod import NEEDED_PATCH, Horovod, patch_warning
from tests.parallel.places import place_of

SHUT_DOWN = (
    "Horovod has been shut down. This was caused by an exception on one of the ranks or an attempt "
    "to allreduce, allgather or broadcast a tensor after one of the ranks finished execution. If "
    "the shutdown was caused by an exception, you should see the exception in the log before the "
    "first shutdown message."
)
EAGER = "{{function_node __wrapped__HorovodAllreduce_device_/job:localhost/task:0/device:CPU:0}} "
GRAPH = (
    "Graph execution error:\n\nDetected at node graph defined at (most recent call last):\n"
    '  File "<frozen runpy>", line 198, in _run_module_as_main\n\n'
    '  File "/site-packages/edl_horovod/frameworks/keras/collectives.py", line 34, in sum_grouped\n'
    '\n  File "/site-packages/horovod/tensorflow/mpi_ops.py", line 176, in _grouped_allreduce\n\n'
    '  File "<string>", line 263, in horovod_grouped_allreduce\n\n'
)
IN_GRAPH = f"{GRAPH}{SHUT_DOWN}\n\t [[{{{{node graph}}}}]] [Op:__inference_graph_sum_8]"
PAIR = "[/tmp/horovod-build/horovod-0.28.1/third_party/gloo/gloo/transport/tcp/pair.cc:602] "
CLOSED = "Connection closed by peer [127.0.0.1]:27331"
RESET = "Read error [127.0.0.1]:9893: Connection reset by peer"
CUT = "Read error [10.77.0.2]:23977: Connection timed out"
NO_ROUTE = "connect [fd00::7]:4411: No route to host"
NOT_FORMED = (
    "Horovod initialization failed. Please check log messages above for a more descriptive error."
)
OURS = 'File "/site-packages/edl_horovod/frameworks/keras/step.py", line 1, in _step'


class OpError(Exception):
    """A framework's error of an op in a graph; its text is in `message`, too."""

    def __init__(self, message):
        super().__init__(message)
        self.message = message


def adapter(**functions):
    return Horovod(SimpleNamespace(shutdown=lambda: None, **functions), op_errors=(OpError,))


@pytest.mark.parametrize(
    ("error", "message", "unreached"),
    [
        (OpError(f"{EAGER}{SHUT_DOWN} [Op:HorovodAllreduce] name: "), SHUT_DOWN[:27], set()),
        (OpError(IN_GRAPH), SHUT_DOWN[:27], set()),
        (OpError(f"{EAGER}{PAIR}{CLOSED}"), CLOSED, set()),
        (OpError(f"{GRAPH}{PAIR}{RESET}"), RESET, set()),
        (OpError(f"{EAGER}{PAIR}{CUT}"), CUT, {"10.77.0.2"}),
        (HorovodInternalError(SHUT_DOWN), SHUT_DOWN, set()),
        (HorovodInternalError(f"{PAIR}{CUT}"), CUT, {"10.77.0.2"}),
        (HorovodInternalError(NO_ROUTE), NO_ROUTE, {"fd00::7"}),
    ],
)
def test_what_horovod_says_of_a_broken_ring_is_a_failed_collective(error, message, unreached):
    with pytest.raises(CollectiveFailed) as caught, adapter().catch_failures():
        raise error
    assert str(caught.value) == message
    assert caught.value.unreached == unreached
    assert caught.value.__cause__ is error


@pytest.mark.parametrize(
    "error", [OpError(f"{OURS}\nindices[0] = 7 is not in [0, 5)"), ValueError("Horovod")]
)
def test_an_error_of_the_users_is_not_although_our_files_stand_in_it(error):
    with pytest.raises(type(error)), adapter().catch_failures():
        raise error


def test_a_ring_that_cannot_be_formed_is_a_failed_collective():
    def init(communicator):
        raise ValueError(NOT_FORMED)

    with pytest.raises(CollectiveFailed) as caught:
        adapter(init=init).form_inherited()
    assert str(caught.value) == f"the ring could not be formed: {NOT_FORMED}"


def test_a_released_horovod_has_no_patch_and_is_given_nothing_to_do(tmp_path):
    (tmp_path / "mpi_lib.so").symlink_to(_ctypes.__file__)
    was_asked = threading.Event()
    released = adapter(
        __file__=str(tmp_path / "__init__.py"), init=lambda communicator: was_asked.wait(5)
    )

    def is_abandoned():
        was_asked.set()
        return True

    with mock.patch.dict(os.environ):
        released.form_assigned(
            place_of(0, 1, "token"), timeout_seconds=1, is_abandoned=is_abandoned
        )
    assert was_asked.is_set()
    assert released.patch_version() == 0


def test_a_patch_that_is_new_enough_is_no_complaint():
    assert patch_warning(NEEDED_PATCH) is None
    assert patch_warning(NEEDED_PATCH + 1) is None


@pytest.mark.parametrize(
    ("version", "received"),
    [(0, "has no patch"), (NEEDED_PATCH - 1, f"has patch {NEEDED_PATCH - 1},")],
)
def test_an_older_patch_is_told_with_both_numbers_and_the_hint(version, received):
    warning = patch_warning(version)
    for text in (received, f"needs patch {NEEDED_PATCH}.", "edl setup-horovod"):
        assert text in warning


@pytest.mark.parametrize(("slot", "num_gpus"), [(0, 0), (3, 0), (0, 1), (1, 2)])
def test_each_slot_has_a_gpu_or_none_has(slot, num_gpus):
    adapter(nccl_built=lambda: 22809).require_gpu_of_its_own(slot, num_gpus)


@pytest.mark.parametrize(("slot", "num_gpus"), [(1, 1), (2, 2), (8, 4)])
def test_nccl_is_not_left_to_refuse_slots_that_share_a_gpu(slot, num_gpus):
    adapter(nccl_built=lambda: 0).require_gpu_of_its_own(slot, num_gpus)
    with pytest.raises(ConfigError, match="NCCL") as raised:
        adapter(nccl_built=lambda: 22809).require_gpu_of_its_own(slot, num_gpus)
    assert "launch.np" in raised.value.hint
