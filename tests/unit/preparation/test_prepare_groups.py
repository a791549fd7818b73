import re
from dataclasses import asdict
from pathlib import Path

import pytest

from edl_horovod.errors import UserCodeError
from edl_horovod.preparation import groups
from edl_horovod.preparation.groups import Group, GroupDone, GroupSettings, prepare_group
from edl_horovod.records.sources.recordio_format import MAX_RECORD_BYTES
from tests.unit.records.record_files import read

FUNCTION = """
import helper

def prepare_data_for_a_single_file(filename):
    return helper.records(filename)
"""
HELPER = """
from pathlib import Path
def records(filename):
    text = Path(filename).read_text()
    if text == "bad":
        raise SystemExit("no good")
    return [part.encode() * 10 for part in text.split()]
"""


@pytest.fixture
def settings(tmp_path):
    def settings(**changes) -> GroupSettings:
        (tmp_path / "zoo").mkdir(exist_ok=True)
        (tmp_path / "zoo" / "words.py").write_text(FUNCTION)
        (tmp_path / "zoo" / "helper.py").write_text(HELPER)
        defaults = {
            "model_zoo": str(tmp_path / "zoo"),
            "model_def": "words",
            "folder": str(tmp_path),
            "prefix": "part",
            "records_per_shard": 100,
            "bytes_per_shard": 1000,
            "codec": "none",
            "max_bad_files": 1,
        }
        return GroupSettings(**{**defaults, **changes})

    return settings


@pytest.fixture
def group(tmp_path):
    def group(*texts: str) -> Group:
        files = [tmp_path / f"{number}.txt" for number in range(len(texts))]
        for file, text in zip(files, texts, strict=True):
            file.write_text(text)
        return Group(number=7, files=[str(file) for file in files])

    return group


def first_bytes(done: GroupDone, folder: Path) -> list[list[bytes]]:
    """The first byte of each record, by shard."""
    return [[record[:1] for record in read(folder / shard.name)] for shard in done.shards]


def test_shards_are_bounded_by_records_across_files(settings, group, tmp_path):
    done = prepare_group(settings(records_per_shard=2), group("a b c", "", "d e"))
    names = [f"part-00007-{number:05d}.recordio" for number in range(3)]
    assert [(shard.name, shard.num_records) for shard in done.shards] == [
        *zip(names, (2, 2, 1), strict=True)
    ]
    assert done.shards[0].num_bytes == sum(map(len, read(tmp_path / names[0])))
    assert first_bytes(done, tmp_path) == [[b"a", b"b"], [b"c", b"d"], [b"e"]]
    assert (done.num_records, done.num_files, done.num_empty) == (5, 3, 1)


def test_shards_are_bounded_by_bytes_and_a_larger_record_has_its_own(settings, group, tmp_path):
    done = prepare_group(settings(bytes_per_shard=25), group("a b c ddddd e"))
    assert first_bytes(done, tmp_path) == [[b"a", b"b"], [b"c"], [b"d"], [b"e"]]


def test_a_group_with_too_many_bad_files_is_given_up(settings, group):
    done = prepare_group(settings(), group("a", "bad", "b", "bad", "c"))
    assert done.is_given_up
    assert [Path(bad.path).name for bad in done.bad] == ["1.txt", "3.txt"]
    assert "helper.py:6: SystemExit:" in done.bad[0].reason
    assert not done.bad[0].reason.startswith(done.bad[0].path)


def test_a_record_too_large_for_the_format_is_a_bad_file(settings, group):
    done = prepare_group(settings(), group("a " + "b" * (MAX_RECORD_BYTES + 1), "c"))
    (bad,) = done.bad
    assert re.search(rf"prepare_data_for_a_single_file.*{MAX_RECORD_BYTES} bytes", bad.reason)
    assert done.num_records == 1


def test_the_file_at_hand_is_told_before_it_is_prepared(settings, group):
    places = []
    prepare_group(settings(), group("a b", "", "c"), lambda *place: places.append(place))
    assert places == [(0, 0), (1, 2), (2, 2)]


def test_the_digest_covers_what_the_model_file_imports_and_nothing_else(settings, tmp_path):
    group_settings = settings()

    def digest() -> str:
        groups.source_digest.cache_clear()
        return groups.source_digest(group_settings.model_zoo, group_settings.model_def)

    before = digest()
    (tmp_path / "zoo" / "other.py").write_text("x = 1")
    assert digest() == before
    (tmp_path / "zoo" / "helper.py").write_text(HELPER + "# changed")
    assert digest() != before


def test_a_missing_function_is_an_error_of_the_model_file(settings, group, tmp_path):
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "empty.py").write_text("")
    with pytest.raises(UserCodeError, match=r"empty\.py"):
        prepare_group(settings(model_def="empty"), group("a"))


def test_what_is_done_survives_json(settings, group):
    done = prepare_group(settings(), group("a", "bad"))
    assert GroupDone.from_dict(asdict(done)) == done
