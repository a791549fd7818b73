"""Skips where there can be no namespaces; makes the hosts, and removes them also after failures."""

import pytest

from tests.netns import lab as labs


@pytest.fixture(scope="session")
def can_have_hosts():
    """Skip with the reason where this machine has no network namespaces for us."""
    if reason := labs.what_is_missing():
        pytest.skip(reason)


@pytest.fixture
def lab(can_have_hosts):
    """A switch without hosts."""
    with labs.Lab() as lab:
        yield lab


@pytest.fixture(name="job")
def cluster_job(lab, tmp_path):
    """A job in a cluster of its own, not submitted yet."""
    # The other tests here need no client of Kubernetes.
    from tests.netns.cluster_job import Job

    job = Job(lab, tmp_path)
    with job.nodes:
        yield job
    job.server.stop()
