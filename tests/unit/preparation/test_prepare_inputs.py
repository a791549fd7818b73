import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_horovod.errors import DataError
from edl_horovod.preparation.inputs import cut, find


@pytest.fixture
def folder(tmp_path):
    for name in ("a/1", "a/2", "b/c/3", ".hidden", ".git/x"):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path / "in"


def names(data: str, folder: Path, *, shuffle: bool = False) -> list[str]:
    return [os.path.relpath(path, folder) for path in find(data, shuffle=shuffle).paths]


def test_a_folder_means_its_files_at_any_depth_but_no_hidden_ones(folder):
    assert names(str(folder), folder) == ["a/1", "a/2", "b/c/3"]


def test_links_are_followed_but_not_in_circles(folder):
    (folder / "b" / "up").symlink_to(folder)
    (folder / "linked").symlink_to(folder / "a" / "1")
    (folder / "gone").symlink_to(folder / "nowhere")
    assert names(str(folder), folder) == ["a/1", "a/2", "b/c/3", "linked"]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("{0}/a/2", ["a/2"]),
        ("{0}/a/*", ["a/1", "a/2"]),
        ("{0}/**/[23]", ["a/2", "b/c/3"]),
        ("{0}/b, {0}/a/2,{0}/a/*", ["b/c/3", "a/2", "a/1"]),
    ],
)
def test_globs_and_several_parts_each_file_once(folder, data, expected):
    assert names(data.format(folder), folder) == expected


def test_a_list_is_taken_as_it_is(folder, tmp_path):
    listed = tmp_path / "list.txt"
    paths = [f"{folder}/b/c/3", f"{folder}/a/1", f"{folder}/a, 1", os.fsdecode(b"/\xff")]
    first, *others = map(os.fsencode, paths)
    listed.write_bytes(first + b"\r\n\n" + b"\n".join(others) + b"\n")
    inputs = find(f"@{listed}", shuffle=False)
    assert inputs.paths == paths
    assert inputs.missing == paths[2:]
    assert inputs.num_bytes == len("b/c/3a/1")
    assert len(inputs.digest_of_paths()) == 64


def test_the_shuffled_order_depends_on_the_files_alone(folder, tmp_path):
    for number in range(50):
        (folder / f"{number:02d}").write_text("")
    listed = tmp_path / "list.txt"
    listed.write_text("\n".join(reversed(find(str(folder), shuffle=False).paths)))
    once = find(str(folder), shuffle=True)
    assert once.paths == find(f"@{listed}", shuffle=True).paths
    assert once.paths != sorted(once.paths)


def test_digests_tell_what_changed(folder):
    before = find(str(folder), shuffle=False)
    (folder / "a" / "2").write_text("longer than before")
    after = find(str(folder), shuffle=False)
    assert before.digest_of_paths() == after.digest_of_paths()
    assert before.digest_of_states(0, 1) == after.digest_of_states(0, 1)
    assert before.digest_of_states(0, 2) != after.digest_of_states(0, 2)
    (folder / "z").write_text("")
    assert before.digest_of_paths() != find(str(folder), shuffle=False).digest_of_paths()


@pytest.mark.parametrize(
    ("data", "detail"),
    [
        ("{0}/*.png", "data='.*png'"),
        ("{0}/a,{0}/nothing", "data='.*nothing'"),
        ("@{0}/none.txt", "list of input files .*none.txt"),
        ("s3://bucket/images", "s3://bucket"),
    ],
)
def test_what_names_nothing_is_refused(folder, data, detail):
    with pytest.raises(DataError, match=detail):
        find(data.format(folder), shuffle=True)


@given(
    sizes=st.lists(st.integers(0, 5 << 20), min_size=1, max_size=300),
    files_per_group=st.integers(0, 50),
    records_per_shard=st.integers(1, 100),
    bytes_per_shard=st.integers(1, 10 << 20),
)
def test_groups_cover_every_file_once_and_keep_their_bounds(sizes, **bounds):
    starts = cut(sizes, **bounds)
    groups = [
        sizes[start:stop] for start, stop in zip(starts, [*starts[1:], len(sizes)], strict=True)
    ]
    assert [size for group in groups for size in group] == sizes
    assert all(groups)
    most = bounds["files_per_group"] or bounds["records_per_shard"]
    assert max(map(len, groups)) <= most
    if not bounds["files_per_group"]:
        most_bytes = bounds["bytes_per_shard"]
        assert all(len(group) == 1 or sum(group) <= most_bytes for group in groups)


@pytest.mark.long(after=1)
@pytest.mark.parametrize(
    ("num_files", "file_bytes", "num_groups"),
    [
        *((30, 300, 1), (1437, 300, 32), (60_000, 300, 32), (10_000_000, 300, 2442)),
        *((100, 10 << 20, 34), (1000, 1 << 30, 1000)),
    ],
)
def test_groups_are_about_a_shard_or_keep_a_machine_busy(num_files, file_bytes, num_groups):
    bounds = {"files_per_group": 0, "records_per_shard": 4096, "bytes_per_shard": 256 << 20}
    assert len(cut([file_bytes] * num_files, **bounds)) == num_groups
