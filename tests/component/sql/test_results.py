"""How much of a plain statement's result is read: memory, limits, and what becomes of the rest."""

import json
import textwrap

import pytest

from edl_horovod.sql.engine import open_engine
from tests.programs import run_python
from tests.sql_service import service

# A vector of DuckDB has 2,048 rows, here 20 MB, and its threads may be some vectors ahead.
MOST_KILOBYTES = 360_000
COMMAND = textwrap.dedent(
    """
    import re, sys
    from pathlib import Path
    from edl_horovod.cli.main import main

    code = main(["sql", "-o", "json", *sys.argv[1:]])
    # The peak that getrusage knows is at least that of the process which began this one.
    peak = re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())
    print(code, peak[1], file=sys.stderr)
    """
)
WIDE = {
    "sqlite": "WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c LIMIT 50000)"
    " SELECT i, printf('%.*c', 10000, 'x') AS x FROM c",
    "postgresql": "SELECT i, repeat('x', 10000) AS x FROM generate_series(1, 50000) AS i",
    "mariadb": "SELECT seq AS i, repeat('x', 10000) AS x FROM seq_1_to_50000",
    "duckdb": "SELECT range AS i, repeat('x', 10000) AS x FROM range(200000)",
}


@pytest.fixture
def url(request, tmp_path):
    if request.param == "duckdb":
        return f"duckdb:///{tmp_path}/some.duckdb"
    return request.getfixturevalue(request.param).url


@pytest.mark.long
@pytest.mark.parametrize(("url", "select"), WIDE.items(), indirect=["url"])
def test_a_large_result_takes_little_memory(url, select, tmp_path):
    words = ["-q", f"db={url}", f"models={tmp_path}/models", f"BEGIN; {select}; SELECT 1 AS one"]
    done = run_python("-c", COMMAND, *words, timeout=200)
    code, kilobytes = map(int, done.stderr.split()[-2:])
    assert code == 0
    assert kilobytes < MOST_KILOBYTES
    *_, wide, last = map(json.loads, done.stdout.splitlines())
    assert wide["has_more_rows"]
    assert wide["rows"][0][1] == 10_000 * "x"
    assert last["rows"] == [[1]]


@pytest.mark.long
def test_the_service_sends_a_client_a_part_of_a_wide_result(sqlite, tmp_path):
    with service(tmp_path, EDL_DB=sqlite.url) as served:
        *rows, said, _ = served.run(WIDE["sqlite"])[1:]
    assert 0 < sum(response.ByteSize() for response in rows) < 20_000_000
    assert "LIMIT" in said.message.message


@pytest.mark.parametrize("begin", ["", "BEGIN"])
def test_what_selects_of_postgresql_do_beside_reading_is_done_for_all_rows(postgresql, begin):
    with open_engine(postgresql.url) as engine:
        engine.execute("CREATE SEQUENCE s")
        engine.execute("CREATE TABLE t (x INTEGER)")
        if begin:
            engine.execute(begin)
        called = engine.execute("SELECT nextval('s') AS n FROM generate_series(1, 20000)")
        assert (len(called.rows), called.has_more_rows) == (10_000, True)
        assert engine.execute("SELECT i FROM generate_series(1, 20000) AS i").has_more_rows
        engine.execute("SELECT i INTO made FROM generate_series(1, 20000) AS i")
        insert = "WITH w AS (INSERT INTO t VALUES (1) RETURNING x) SELECT x FROM w"
        assert engine.execute(insert).rows == ((1,),)
        assert engine.execute("SELECT x FROM t FOR UPDATE").rows == ((1,),)
        if begin:
            engine.execute("COMMIT")
    (row,) = postgresql.run("SELECT last_value, (SELECT count(*) FROM made), x FROM s, t")
    assert row == (20_000, 20_000, 1)
