"""A public export of Nsight Systems (schema 3.25, two ranks of a training): read again in plain SQL."""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from pathlib import Path

import pyarrow.compute as pc
import pytest

from xprof_py.postprocess.join import join_profile
from xprof_py.postprocess.readers.nsys import nsys_processes, read_nsys

ROOT = Path(__file__).resolve().parents[2]
TRACES = Path(os.environ.get("XPROF_PY_REAL_TRACES", ROOT.parent / "shared" / "traces"))
FILES = sorted((TRACES / "nsys").glob("*.sqlite"))
pytestmark = pytest.mark.skipif(
    not FILES,
    reason=f"no exports of Nsight Systems below {TRACES / 'nsys'}: XPROF_PY_REAL_TRACES names the folder",
)

_NAMED = """
    select s.value, k.start, k.end, r.start from CUPTI_ACTIVITY_KIND_KERNEL k join StringIds s on s.id = k.demangledName
    left join CUPTI_ACTIVITY_KIND_RUNTIME r
    on r.correlationId = k.correlationId and r.globalTid >> 24 = k.globalPid >> 24
    where (k.globalPid >> 24) & 0xFFFFFF = ?
"""


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_sql_reads_the_same(file: Path) -> None:
    """Every kernel with its exact times and the call that launched it, and how many of all else there are."""
    database = sqlite3.connect(f"{file.as_uri()}?mode=ro&immutable=1", uri=True)
    (began_ns,) = database.execute("select utcEpochNs from TARGET_INFO_SESSION_START_TIME").fetchone()
    processes = nsys_processes(file)
    assert len(processes) == 2
    for pid in processes:
        profile = read_nsys(file, str(pid))
        assert profile["diagnostics"].filter(pc.not_equal(profile["diagnostics"]["severity"], "note")).num_rows == 0
        zero_ns = profile.origin_ns - began_ns
        joined = join_profile(profile)
        starts = joined["events"]["start_ps"].to_pylist()
        called = {row["event"]: row for row in joined["launches"].to_pylist()}
        assert len(called) == joined["launches"].num_rows
        launch_start = joined["launches"]["start_ps"].to_pylist()
        run_launch = joined["runs"]["launch"].to_pylist()
        names = joined["events"]["name"].to_pylist()
        found: Counter[tuple[object, ...]] = Counter()
        for op in joined["ops"].to_pylist():
            if op["run"] is None:
                continue
            launch = run_launch[op["run"]]
            launched = None if launch is None else launch_start[launch] // 1000 + zero_ns
            start = starts[op["event"]] // 1000 + zero_ns
            found[names[op["event"]], start, start + op["duration_ps"] // 1000, launched] += 1
        wanted = Counter(database.execute(_NAMED, (pid,)).fetchall())
        assert found == wanted
        for table, key in (("MEMCPY", "copies"),):
            sql = f"select count(*), sum(bytes) from CUPTI_ACTIVITY_KIND_{table} where (globalPid >> 24) & 0xFFFFFF = ?"
            assert (joined[key].num_rows, pc.sum(joined[key]["bytes"]).as_py()) == database.execute(
                sql, (pid,)
            ).fetchone()
        (ranges,) = database.execute(
            "select count(*) from NVTX_EVENTS where (globalTid >> 24) & 0xFFFFFF = ?", (pid,)
        ).fetchone()
        (calls,) = database.execute(
            "select count(*) from CUPTI_ACTIVITY_KIND_RUNTIME where (globalTid >> 24) & 0xFFFFFF = ?", (pid,)
        ).fetchone()
        planes = joined["lines"]["plane"].to_pylist()
        on_host = sum(planes[line].startswith("/host:") for line in joined["events"]["line"].to_pylist())
        assert on_host == ranges + calls
    database.close()
