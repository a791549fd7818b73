import os

from edl_horovod.preparation.pools import open_position_file, read_position, write_position


def test_what_was_written_last_is_read_by_another_descriptor():
    with open_position_file() as file:
        other = os.dup(file.fileno())
        try:
            assert read_position(other) == (-1, 0, 0)
            write_position(file.fileno(), 7, 3, 1 << 40)
            write_position(file.fileno(), 7, 4, 12)
            assert read_position(other) == (7, 4, 12)
        finally:
            os.close(other)
