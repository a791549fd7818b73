"""What all tests start from."""

import asyncio
import contextlib
import gc
import inspect
import logging
import os
import re
import signal
import sys
from collections import Counter
from pathlib import Path

import hypothesis
import pytest

from tests import databases
from tests.frameworks import HALVES, is_there
from tests.later import evaluate_later, run_later_blocks
from tests.shared import shared

# An example may take as long as it likes, and so may its making: on a busy machine any of them can.
hypothesis.settings.register_profile(
    "tests", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("tests")
if examples := os.environ.get("EDL_EXAMPLES"):  # Of `make nightly PART=fuzz`.
    hypothesis.settings.register_profile(
        "fuzz", hypothesis.settings.get_profile("tests"), max_examples=int(examples)
    )
    hypothesis.settings.load_profile("fuzz")

# What a shell runs in the background ignores Ctrl-C, and so would all that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# PyTorch's builds for GPUs import it late, and after TensorFlow that ends the process by a signal.
with contextlib.suppress(ImportError):
    import triton  # noqa: F401

pytest_plugins = ["tests.workers"]

# Several processes share the cores, and PyTorch reads it when it is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

FIGURE = "figure"
BROUGHT_BY = {
    "h5py": "keras",
    "keras": "keras",
    "tensorflow": "keras",
    "tf_keras": "keras",
    "torch": "torch",
}
"""Packages that only the set-up of a framework installs."""


def pytest_addoption(parser):
    """Add the option of `make test ONLY=words`."""
    text = "as -k, but files without these words are not even read"
    parser.addoption("--only", default="", metavar="EXPRESSION", help=text)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    """Choose tests by their names, if that is asked for."""
    if config.option.only:
        config.option.keyword = config.option.only
    if sys.version_info >= (3, 13):  # AutoGraph writes syntax trees as before.
        warning = "ignore:.*arbitrary keyword arguments is deprecated:DeprecationWarning"
        config.addinivalue_line("filterwarnings", warning)
    # Until all is collected, and imported, there is next to no garbage.
    gc.disable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Let `make test ONLY=torch` find tests of both frameworks, and shorten tables of cases."""
    num_cases = Counter()
    for item in items:
        # They all need PyTorch.
        if "both" in item.path.relative_to(Path(__file__).parent).parts:
            item.extra_keyword_matches.add("torch")
        for mark in [mark for mark in item.own_markers if "after" in mark.kwargs]:
            function = item.path, item.originalname
            num_cases[function] += 1
            if num_cases[function] <= mark.kwargs["after"]:
                item.own_markers.remove(mark)


def pytest_ignore_collect(collection_path, config):
    """Pass over a file that cannot have the test that is asked for."""
    words = re.findall(r"\w+", config.option.only.lower())
    if not words or "not" in words or not collection_path.name.startswith("test_"):
        return None
    text = f"{collection_path}\n{collection_path.read_text(encoding='utf-8')}".lower()
    # The frameworks of tests of whole jobs are named elsewhere.
    text += "".join(HALVES) if "integration" in collection_path.parts else ""
    return not any(word in text for word in words) or None


def pytest_collection_finish():
    """Search what is imported by now for garbage never, as it stays."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure():
    """Let the interpreter's end find it again: bindings report what is left then as leaks."""
    gc.unfreeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Skip what only root may do, or what a framework is missing for; import what a test needs."""
    # Root changes a machine: small file systems, control groups.
    if item.get_closest_marker("root") and os.geteuid() != 0:
        pytest.skip("only root may do this: make test-all")
    if isinstance(item, pytest.Function):
        _import_what_is_needed(item)


def _import_what_is_needed(item):
    try:
        run_later_blocks(item.module)
    except ModuleNotFoundError as error:
        framework = BROUGHT_BY.get(error.name)
        if framework is None or is_there(HALVES[framework]):
            raise
        pytest.skip(f"make setup FRAMEWORKS={HALVES[framework]}")
    if hasattr(item, "callspec"):
        evaluate_later(item.callspec.params, item.module)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run a test that is a coroutine, within those of its fixtures that a loop must enter."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    fixtures = {name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}

    async def run():
        async with contextlib.AsyncExitStack() as stack:
            for fixture in fixtures.values():
                if hasattr(fixture, "__aenter__"):
                    await stack.enter_async_context(fixture)
            await test(**fixtures)

    asyncio.run(run())
    return True


@pytest.fixture(scope="session")
def empty_folder(tmp_path_factory):
    """A folder in which a process of tests begins each of them."""
    return tmp_path_factory.mktemp("empty")


@pytest.fixture(autouse=True)
def _working_directory(empty_folder, monkeypatch):
    """Start elsewhere than in the clone: the demo leaves jobs there, and users leave files."""
    monkeypatch.chdir(empty_folder)


@pytest.fixture(autouse=True)
def _own_log():
    """What a test's command set up writes to the test's own stderr, which ends with it."""
    logger = logging.getLogger("edl_horovod")
    handlers, level, propagate = list(logger.handlers), logger.level, logger.propagate
    yield
    logger.handlers[:] = handlers
    logger.setLevel(level)
    logger.propagate = propagate


@pytest.fixture(autouse=True)
def _own_precision():
    """A training in the test's process sets Keras' global policy, as it may in a rank."""
    yield
    if "keras" in sys.modules:
        sys.modules["keras"].config.set_dtype_policy("float32")


@pytest.fixture
def imports_end_with_the_test():
    """Forget the modules that a test imports, as those of a zoo, and the paths that it adds."""
    modules, path = set(sys.modules), list(sys.path)
    yield
    for name in set(sys.modules) - modules:
        del sys.modules[name]
    sys.path[:] = path


@pytest.fixture(scope="session")
def postgresql_server():
    """A server for all tests of a run: the URL without a database's name."""
    databases.postgresql_programs()
    with shared(databases.postgresql) as url:
        yield url


@pytest.fixture(scope="session")
def mariadb_server():
    """A server for all tests of a run: the URL without a database's name."""
    databases.needs("/usr/sbin/mariadbd", "mariadb-install-db")
    with shared(databases.mariadb) as url:
        yield url


@pytest.fixture
def say(record_property):
    """Print a measured figure at the end of the run, also where the test succeeds."""

    def write(text):
        record_property(FIGURE, text)

    return write


def pytest_terminal_summary(terminalreporter):
    """Print the figures of all tests; those of other processes come with their reports."""
    reports = [report for found in terminalreporter.stats.values() for report in found]
    calls = [report for report in reports if getattr(report, "when", None) == "call"]
    told = [(call, text) for call in calls for name, text in call.user_properties if name == FIGURE]
    if told:
        terminalreporter.section("measured figures")
    for call, text in told:
        terminalreporter.write_line(f"{call.nodeid}: {text}")
