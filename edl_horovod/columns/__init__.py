"""What the columns of a table hold, found out by one pass over all rows, and features of them."""

from edl_horovod.columns.infer import EMPTY_NUMBERS, Column, infer

__all__ = ["EMPTY_NUMBERS", "Column", "infer"]
