import os

from edl_horovod.preparation.place import open_place_file, read_place, write_place


def test_what_was_written_last_is_read_by_another_descriptor():
    with open_place_file() as file:
        other = os.dup(file.fileno())
        try:
            assert read_place(other) == (-1, 0, 0)
            write_place(file.fileno(), 7, 3, 1 << 40)
            write_place(file.fileno(), 7, 4, 12)
            assert read_place(other) == (7, 4, 12)
        finally:
            os.close(other)
