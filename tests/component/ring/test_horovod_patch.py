"""A Horovod without the patch is known by its library."""

from edl_horovod.ring.horovod_patch import MARK, is_patched


def test_the_mark_is_found_wherever_it_stands(tmp_path):
    library = tmp_path / "mpi_lib.so"
    library.write_bytes(b"\x00" * 5000 + MARK + b"\x00" * 5000)
    assert is_patched(library)


def test_a_released_library_has_no_mark(tmp_path):
    library = tmp_path / "mpi_lib.so"
    library.write_bytes(b"\x7fELF" + b"\x00" * 5000)
    assert not is_patched(library)
