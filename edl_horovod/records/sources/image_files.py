"""The format of image files in one folder per class."""

from edl_horovod.records.record_format import (
    ColumnFormat,
    FileFormat,
    FormatSettings,
    RecordFormat,
)
from edl_horovod.records.sources.image_classes import check_same_classes

__all__ = ["FORMAT"]


def _make(settings: FormatSettings) -> RecordFormat:
    # Imported here: commands that only check the settings do not need NumPy.
    from edl_horovod.records.sources.image_folders import ImageFolders

    folders = ImageFolders(settings)
    decode = ColumnFormat(folders.layout, folders.decode)
    return RecordFormat(FORMAT.name, folders.scan, decode, folders.holds, content="time")


FORMAT = FileFormat(
    name="picture", make=_make, has_compression=True, check_together=check_same_classes
)
