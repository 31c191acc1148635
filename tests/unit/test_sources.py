"""From what a person names to the files of one job."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from xprof_py.errors import BadInputError
from xprof_py.postprocess.readers.sources import find_sources


def make(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"\x0a\x00")


def test_a_run_folder_pairs_shard_xspace_and_run_file_by_rank(tmp_path: Path) -> None:
    make(
        tmp_path,
        "run/0-100.json",
        "run/1-101.json",
        "shards/0-100.xpr",
        "shards/1-101.xpr",
        "plugins/profile/run/0.xplane.pb",
        "plugins/profile/run/1.xplane.pb",
        "analysis/step_classes.parquet",
    )
    found = find_sources([tmp_path])
    assert found.root == tmp_path
    assert [(s.key, s.xspace and s.xspace.name, s.shard and s.shard.name) for s in found.processes] == [
        ("0-100", "0.xplane.pb", "0-100.xpr"),
        ("1-101", "1.xplane.pb", "1-101.xpr"),
    ]
    assert [s.run_file and s.run_file.name for s in found.processes] == ["0-100.json", "1-101.json"]


def test_ranks_are_in_the_order_of_numbers(tmp_path: Path) -> None:
    make(tmp_path, *(f"{rank}.xplane.pb" for rank in (10, 2, 0)))
    assert [s.key for s in find_sources([tmp_path]).processes] == ["0", "2", "10"]


def test_the_newest_of_several_sessions_is_read_and_said(tmp_path: Path) -> None:
    make(tmp_path, "plugins/profile/2026_01_01/a.xplane.pb", "plugins/profile/2026_01_02/a.xplane.pb")
    for day, name in enumerate(("2026_01_01", "2026_01_02")):
        os.utime(tmp_path / "plugins/profile" / name, (day, day))
    found = find_sources([tmp_path])
    assert [str(s.xspace) for s in found.processes] == [str(tmp_path / "plugins/profile/2026_01_02/a.xplane.pb")]
    assert [row["code"] for row in found.diagnostics] == ["several_sessions"]


def test_caches_of_other_tools_are_passed_over(tmp_path: Path) -> None:
    make(
        tmp_path,
        "host.xplane.pb",
        "ALL_HOSTS.op_stats_v2.pb",
        "host.SSTABLE",
        "jit_f(3).hlo_proto.pb",
        "host.trace.json.gz",
    )
    assert [s.key for s in find_sources([tmp_path]).processes] == ["host"]


def test_globs_and_files_name_one_job(tmp_path: Path) -> None:
    make(tmp_path, "a/host.xplane.pb", "b/host.xplane.pb", "b/other.xplane.pb.gz")
    assert len(find_sources([f"{tmp_path}/*/host.xplane.pb"]).processes) == 2
    assert len(find_sources([tmp_path / "a/host.xplane.pb", tmp_path / "b"]).processes) == 3


def test_what_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="no such file or folder"):
        find_sources([tmp_path / "nowhere"])
    with pytest.raises(BadInputError, match="no file matches"):
        find_sources([f"{tmp_path}/*.pb"])
    with pytest.raises(BadInputError, match="no profile in this folder"):
        find_sources([tmp_path])


def test_the_newest_recording_of_a_rank_is_read_and_said(tmp_path: Path) -> None:
    make(
        tmp_path, "run/0-1.json", "run/0-2.json", "shards/0-1.xpr", "shards/0-2.xpr", "plugins/profile/run/0.xplane.pb"
    )
    os.utime(tmp_path / "run/0-1.json", (2, 2))
    os.utime(tmp_path / "run/0-2.json", (1, 1))
    found = find_sources([tmp_path])
    assert [(s.key, s.xspace and s.xspace.name) for s in found.processes] == [("0-1", "0.xplane.pb")]
    assert [row["code"] for row in found.diagnostics] == ["several_recordings"]


def test_no_profile_is_lost_where_two_fit_a_shard(tmp_path: Path) -> None:
    for name in ("0-12.xpr", "0.xplane.pb", "0-12.xplane.pb"):
        (tmp_path / name).write_bytes(b"XPRSHARD" if name.endswith(".xpr") else b"\x0a\x00")
    found = find_sources([tmp_path]).processes
    assert sorted(s.xspace.name for s in found if s.xspace is not None) == ["0-12.xplane.pb", "0.xplane.pb"]
