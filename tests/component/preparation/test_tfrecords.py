"""Compressed TFRecord files, turned into RecordIO as the page on preparing data says."""

import subprocess
import sys
import textwrap

import pytest

from edl_horovod.records.reader import Reader
from tests.later import LATER

if LATER:
    import tensorflow as tf

RECORDS = [b"first", b"", bytes(70_000), b"\x00\x01"]


@pytest.mark.further
def test_the_documented_function_prepares_its_records(tmp_path, pytestconfig):
    with tf.io.TFRecordWriter(str(tmp_path / "old.tfrecord"), options="GZIP") as writer:
        for record in RECORDS:
            writer.write(record)
    page = (pytestconfig.rootpath / "docs" / "how-to" / "prepare.md").read_text()
    start = page.index("    import tensorflow as tf\n")
    end = page.index("    edl prepare model_zoo=tfrecords.py", start)
    (tmp_path / "tfrecords.py").write_text(textwrap.dedent(page[start:end]))

    command = [sys.executable, "-m", "edl_horovod", "prepare", "-q", "model_zoo=tfrecords.py"]
    command += [f"data={tmp_path}/old.tfrecord", "output=records", "processes=1"]
    prepared = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )

    assert prepared.returncode == 0, prepared.stderr
    with Reader.open(str(tmp_path / "records")) as reader:
        assert list(reader) == RECORDS
