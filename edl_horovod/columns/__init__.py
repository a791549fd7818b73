"""What the columns of a table hold, found out by one pass over all of its rows."""

from edl_horovod.columns.infer import EMPTY_NUMBERS, Column, infer

__all__ = ["EMPTY_NUMBERS", "Column", "infer"]
