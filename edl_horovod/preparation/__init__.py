"""Converts the user's files to RecordIO with the function `prepare_data_for_a_single_file`."""

from edl_horovod.preparation.job import PrepareResult, describe, run

__all__ = ["PrepareResult", "describe", "run"]
