"""Types and statistics of a table's columns, inferred in one pass, and features made from them."""

from edl_horovod.columns.infer import EMPTY_NUMBERS, Column, infer

__all__ = ["EMPTY_NUMBERS", "Column", "infer"]
