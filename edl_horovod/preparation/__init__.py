"""Turn the user's own files into RecordIO by calling `prepare_data_for_a_single_file` on each."""

from edl_horovod.preparation.job import PrepareResult, describe, run

__all__ = ["PrepareResult", "describe", "run"]
