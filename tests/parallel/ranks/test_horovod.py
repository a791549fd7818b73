"""The Horovod under the tests is the one that the set-up builds."""

from edl_horovod.ring.horovod_patch import is_patched, library


def test_the_installed_horovod_is_patched():
    assert is_patched(library())
