"""What a capture lost, or what is gone from its folder, is said; nothing is told about a device that was not seen."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import xprof_py
from xprof_py.errors import BadInputError
from xprof_py.postprocess.readers.shard import read_shard

DATA = Path(__file__).parent.parent / "data" / "jax_cpu"


def run_file(**changes: Any) -> dict[str, Any]:
    return {
        "state": "finished",
        "process_index": 0,
        "hostname": "node",
        "versions": {"jax": "0.10.2"},
        "collectors": {"xla": {"used": True}},
        "files": {"xplane": "plugins/profile/run/0.xplane.pb"},
        "messages": [],
        "drained": True,
        **changes,
    }


def make_run(root: Path, *, xspace: bool = True, **changes: Any) -> Path:
    (root / "run").mkdir(parents=True)
    (root / "run" / "0-7.json").write_text(json.dumps(run_file(**changes)))
    with xprof_py.capture(root / "other", xla=False), xprof_py.step(0):
        pass
    (root / "shards").mkdir()
    shutil.copy(next((root / "other" / "shards").iterdir()), root / "shards" / "0-7.xpr")
    shutil.rmtree(root / "other")
    if xspace:
        folder = root / "plugins" / "profile" / "run"
        folder.mkdir(parents=True)
        # A shard of another time holds no step of this profile: only the XSpace's own markers count here.
        shutil.copy(DATA / "planted_compute.xplane.pb.gz", folder / "0.xplane.pb.gz")
    return root


def said(root: Path) -> dict[str, str]:
    return {row["code"]: row["message"] for row in xprof_py.load(root).summary()["diagnostics"]}


def test_a_lost_xla_profile_gives_no_verdict_and_says_why(tmp_path: Path) -> None:
    xla = {"used": False, "why": "could not start", "error": "the program's own jax.profiler trace is running"}
    root = make_run(tmp_path / "run", xspace=False, collectors={"xla": xla}, files={})
    summary = xprof_py.load(root).summary()
    assert summary["verdict"] is None
    assert summary["steps"]["missing"][0]["why"] == "no XLA profile: the program's own jax.profiler trace is running"
    assert said(root)["no_xla_profile"] == "no XLA profile: the program's own jax.profiler trace is running"


def test_a_deleted_xla_profile_is_missed(tmp_path: Path) -> None:
    root = make_run(tmp_path / "run", xspace=False)
    assert xprof_py.load(root).verdict() is None
    assert said(root)["file_missing"] == "XLA's profile is missing: plugins/profile/run/0.xplane.pb"


def test_a_deleted_shard_is_missed(tmp_path: Path) -> None:
    root = make_run(tmp_path / "run", files={"shard": "shards/0-7.xpr"})
    shutil.rmtree(root / "shards")
    assert said(root)["file_missing"] == "the shard is missing: shards/0-7.xpr"


def test_a_shard_that_was_cut_behind_its_capture_is_not_taken_for_whole(tmp_path: Path) -> None:
    with xprof_py.capture(tmp_path / "run", xla=False, stacks=False):
        for i in range(2000):
            with xprof_py.step(i):
                pass
    shard = next((tmp_path / "run" / "shards").glob("*.xpr"))
    assert "shard_incomplete" not in said(tmp_path / "run")
    content = shard.read_bytes()
    shard.write_bytes(content[: len(content) // 2])
    lost = said(tmp_path / "run")["shard_incomplete"]
    written = json.loads(next((tmp_path / "run" / "run").iterdir()).read_text())["overhead"]["recorder"]["written"]
    kept = read_shard(shard)["events"].num_rows
    assert 0 <= kept < 2000 <= written
    assert lost.startswith(f"{written - kept} of the {written} events that the recorder wrote are not in the shard")


def test_a_file_that_cannot_be_read_is_not_called_missing(tmp_path: Path) -> None:
    root = make_run(tmp_path / "run", files={"shard": "shards/0-7.xpr", "xplane": "plugins/profile/run/0.xplane.pb"})
    (root / "shards" / "0-7.xpr").write_bytes(bytes(128))
    found = said(root)
    assert "unreadable" in found
    assert "file_missing" not in found


def test_a_capture_that_did_not_end_says_so(tmp_path: Path) -> None:
    assert "still runs" in said(make_run(tmp_path / "run", state="recording"))["capture_not_ended"]


def test_what_the_capture_warned_of_is_repeated(tmp_path: Path) -> None:
    root = make_run(tmp_path / "run", messages=[{"severity": "warning", "message": "41 annotations were dropped"}])
    assert said(root)["capture"] == "41 annotations were dropped"


@pytest.mark.parametrize("content", ["[]", "{", '{"collectors": 3}', '{"messages": "none"}'])
def test_a_damaged_run_file_costs_itself_alone(tmp_path: Path, content: str) -> None:
    root = make_run(tmp_path / "run")
    (root / "run" / "0-7.json").write_text(content)
    assert "0-7.json" in next(row["file"] for row in xprof_py.load(root).summary()["diagnostics"])


def test_a_program_without_jax_has_the_steps_of_its_host(tmp_path: Path) -> None:
    root = make_run(tmp_path / "run", xspace=False, collectors={"xla": {"used": False, "why": "no JAX"}}, files={})
    verdict = xprof_py.load(root).verdict()
    assert verdict is not None
    assert verdict["sentence"].startswith("The program waits")


def test_two_runs_are_not_one_job(tmp_path: Path) -> None:
    roots = [make_run(tmp_path / name) for name in ("a", "b")]
    with pytest.raises(BadInputError, match="are two runs"):
        xprof_py.load(*roots)
