"""Watches, against any API server."""

import pytest

from edl_horovod.cluster.client import Cluster, WatchEvent
from edl_horovod.cluster.refusals import Expired
from tests.kube.conftest import pod

JOB = {"job": "x"}


def take(cluster: Cluster, version: str, number: int, labels: str = "job=x") -> list[WatchEvent]:
    """The first events that are no bookmarks."""
    events = []
    watch = cluster.watch("Pod", version, labels=labels)
    try:
        for event in watch:
            if event.kind != "BOOKMARK":
                events.append(event)
            if len(events) == number:
                break
    finally:
        watch.close()
    return events


def take_until_deleted(cluster: Cluster, version: str) -> list[WatchEvent]:
    """The events up to the first pod that is gone; a server may tell of more changes than one."""
    events = take(cluster, version, 1)
    while events[-1].kind != "DELETED":
        events += take(cluster, events[-1].version, 1)
    return events


def changes(events: list[WatchEvent]) -> list[tuple[str, str]]:
    return [(event.kind, event.object["metadata"]["name"]) for event in events]


@pytest.fixture
def version(cluster):
    cluster.create(pod("old", labels=JOB))
    return next(cluster.pages("Pod")).version


def test_a_watch_tells_what_came_after_the_list(cluster, version):
    cluster.create(pod("new", labels=JOB))
    cluster.patch("Pod", "old", {"metadata": {"annotations": {"a": "1"}}})
    cluster.delete("Pod", "old", grace_seconds=0)

    events = take_until_deleted(cluster, version)

    expected = [("ADDED", "new"), ("MODIFIED", "old"), ("DELETED", "old")]
    assert list(dict.fromkeys(changes(events))) == expected


def test_a_watch_goes_on_after_the_last_event_that_was_seen(cluster, version):
    cluster.create(pod("a", labels=JOB))
    first = take(cluster, version, 1)[0]
    cluster.create(pod("b", labels=JOB))

    assert changes(take(cluster, first.version, 1)) == [("ADDED", "b")]


def test_what_leaves_the_selection_is_deleted_for_the_watch(cluster, version):
    cluster.patch("Pod", "old", {"metadata": {"labels": {"job": None}}})
    cluster.patch("Pod", "old", {"metadata": {"labels": {"job": "x"}}})

    assert changes(take(cluster, version, 2)) == [("DELETED", "old"), ("ADDED", "old")]


def test_others_are_not_told(cluster, version):
    cluster.create(pod("other", labels={"job": "y"}))
    cluster.create(pod("ours", labels=JOB))

    assert changes(take(cluster, version, 1)) == [("ADDED", "ours")]


def test_a_terminating_pod_is_told_before_it_is_gone(cluster, version):
    cluster.delete("Pod", "old")
    cluster.delete("Pod", "old", grace_seconds=0)

    events = take_until_deleted(cluster, version)
    assert events[0].kind == "MODIFIED"
    assert events[0].object["metadata"]["deletionTimestamp"]


def test_a_version_that_is_too_old_has_expired(cluster):
    with pytest.raises(Expired):
        list(cluster.watch("Pod", "1"))
