"""Public traces of PyTorch: what is known of them, and an independent reading of every file with json."""

from __future__ import annotations

import gzip
import json
import os
import re
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest

from xprof_py.postprocess.fleet.analysis import analyse
from xprof_py.postprocess.join import join_profile
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.readers import chrome_stretches
from xprof_py.postprocess.readers.chrome_json import read_chrome_json
from xprof_py.postprocess.readers.sources import find_sources
from xprof_py.postprocess.readers.workers import Workers

PS_PER_US = 10**6
ROOT = Path(__file__).resolve().parents[2]
TRACES = Path(os.environ.get("XPROF_PY_REAL_TRACES", ROOT.parent / "shared" / "traces"))
FOLDER = TRACES / "kineto"
FILES = sorted(FOLDER.glob("*.json.gz"))
WORK = ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset")
NCCL = re.compile("nccl", re.I)
pytestmark = pytest.mark.skipif(
    not FILES, reason=f"no traces of PyTorch below {FOLDER}; set XPROF_PY_REAL_TRACES to the folder of real traces"
)


def named(name: str) -> Path:
    return FOLDER / f"{name}.json.gz"


def kernels_us(profile: Profile, test: re.Pattern[str]) -> list[int]:
    """Durations in ps of the device's work whose name passes."""
    events = profile["events"]
    planes = profile["lines"]["plane"].to_pylist()
    names = profile["lines"]["name"].to_pylist()
    streams = [i for i, plane in enumerate(planes) if plane.startswith("/device:") and names[i].startswith("Stream #")]
    mine = events.filter(pc.is_in(events["line"], pc.cast(np.array(streams, np.int32), "int32")))
    return [d for n, d in zip(mine["name"].to_pylist(), mine["duration_ps"].to_pylist(), strict=True) if test.search(n)]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_several_workers_read_the_same(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """These files are too small to be shared; as if they were not."""
    monkeypatch.setattr(chrome_stretches, "WORTH_A_WORKER_BYTES", 0)
    one, several = read_chrome_json(file), read_chrome_json(file, workers=Workers(2))
    assert several.metadata == one.metadata
    assert all(several[table].equals(one[table]) for table in one.tables)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_json_reads_the_same(file: Path) -> None:
    """Every event with a duration: name, category's role, exact time and duration; and every kernel's ids."""
    text = gzip.decompress(file.read_bytes()).decode()
    trace = json.loads(text, parse_float=Decimal, strict=False)
    profile = read_chrome_json(file)
    base_ps = int(trace.get("baseTimeNanoseconds", 0)) * 1000 - profile.origin_ns * 1000
    wanted: Counter[tuple[Any, ...]] = Counter()
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            work = str(event.get("cat", "")).lower() in WORK
            name = (
                re.sub(r"^ProfilerStep#\d+$", "ProfilerStep", event["name"])
                if "gpu_" not in event["cat"]
                else event["name"]
            )
            start, duration = (int(Decimal(event[key]) * PS_PER_US) for key in ("ts", "dur"))
            wanted[name, work, start + base_ps, duration] += 1
    events = profile["events"].filter(pc.not_equal(profile["events"]["kind"], 5))
    names, planes = profile["lines"]["name"].to_pylist(), profile["lines"]["plane"].to_pylist()
    stream = [p.startswith("/device:") and n.startswith("Stream #") for p, n in zip(planes, names, strict=True)]
    found = Counter(
        zip(
            events["name"].to_pylist(),
            (stream[line] for line in events["line"].to_pylist()),
            events["start_ps"].to_pylist(),
            events["duration_ps"].to_pylist(),
            strict=True,
        )
    )
    assert found == wanted
    ids = [e["args"]["correlation"] for e in trace["traceEvents"] if str(e.get("cat", "")).lower() in WORK]
    args = profile["args"].filter(pc.equal(profile["args"]["key"].cast("string"), "correlation_id"))
    line = profile["events"]["line"].take(args["event"]).to_pylist()
    assert sorted(v for v, at in zip(args["value"].to_pylist(), line, strict=True) if stream[at]) == sorted(ids)


def test_nccl_kernels_of_hta_sum_to_what_the_file_says() -> None:
    """162 532.3 us; rounded to whole microseconds 44 of them last nothing, and all 159 870 us."""
    profile = read_chrome_json(named("hta_nccl_data"))
    total_ps = sum(kernels_us(profile, re.compile(r"^(?!Memcpy|Memset)")))
    assert round(total_ps / PS_PER_US, 1) == 162_532.3
    assert len(kernels_us(profile, NCCL)) == 21
    keys = set(profile["args"]["key"].to_pylist())
    assert {"Collective name", "In msg nelems", "Group size", "dtype", "Process Group Name"} <= keys
    assert profile.metadata["process_groups"][0]["ranks"] == [0, 1]


def test_every_rank_of_dlrm_has_its_eight_collectives() -> None:
    """8 ranks in an archive, one step each: 5 SendRecv and 3 AllReduce, whose ends agree on one host's clock."""
    archive = FOLDER / "param_dlrm_kineto.tar.gz"
    ends = []
    for source in find_sources([archive]).processes:
        profile = read_chrome_json(archive, source.member)
        found = kernels_us(profile, NCCL)
        assert len(found) == 8
        rows = [row for row in profile["events"].to_pylist() if row["name"].startswith("ncclKernel")]
        ends.append(sorted(row["start_ps"] + row["duration_ps"] + profile.origin_ns * 1000 for row in rows))
    assert len(ends) == 8
    skew_us = sorted((max(of) - min(of)) // PS_PER_US for of in zip(*ends, strict=True))
    assert skew_us == [1, 2, 2, 2, 3, 5, 5, 7]
    summary = analyse([archive]).summary
    assert [host["process_index"] for host in summary["hosts"]] == list(range(8))
    assert "missing_ranks" not in {row["code"] for row in summary["diagnostics"]}


def test_resnet_without_loader_workers_would_take_a_third_less_without_its_input() -> None:
    """DataLoader.__next__ takes 63 to 73 ms of each step. The same job with 4 workers, in which it takes 4 ms at most,
    steps in 116 ms: so much the replay without input must promise."""
    profile = read_chrome_json(named("kineto_resnet50_nw0"))
    rows = [row for row in profile["events"].to_pylist() if row["name"].startswith("enumerate(DataLoader)")]
    waits_ms = [row["duration_ps"] / 1e9 for row in rows]
    assert len(waits_ms) == 6
    assert min(waits_ms) > 62
    assert max(waits_ms) < 74
    analysis = analyse([named("kineto_resnet50_nw0")])
    replay = {row["removed"]: row for row in analysis.tables["replay"].to_pylist()}
    assert replay["nothing"]["replayed_ps"] == replay["nothing"]["measured_ps"]
    assert replay["input"]["replayed_ps"] / 1e9 == pytest.approx(116, rel=0.05)
    shares = {name: row["share"] for name, row in analysis.summary["breakdown"].items()}
    assert max((s, n) for n, s in shares.items() if n not in ("compute", "memory"))[1] == "input"
    assert shares["unknown"] < 0.05


@pytest.mark.parametrize("name", ["tl_mi300_resnet_act_checkpoint", "tl_inference_vllm_decode_full_graph_execution"])
def test_mi300(name: str) -> None:
    joined = join_profile(read_chrome_json(named(name)))
    assert joined["lanes"]["device"].to_pylist() == ["/device:GPU:2"]
    classes = Counter(joined["ops"]["class"].to_pylist())
    if name.startswith("tl_mi300"):
        assert joined["steps"]["number"].to_pylist() == [15, 16, 17]
        assert classes == {"compute": 2995 - 17, "collective": 17, "memory": 550 + 108}
    else:
        assert sum(classes.values()) == 425 + 9
        # One launch of a graph, and the few kernels around it: every kernel has a launch.
        assert not pc.any(pc.is_null(joined["runs"]["launch"])).as_py()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_windows_are_divided_to_the_picosecond(file: Path) -> None:
    joined = join_profile(read_chrome_json(file))
    rows = joined["breakdown"].to_pylist()
    length: dict[int, int] = {}
    for window, row in enumerate(joined["windows"].to_pylist()):
        length[window] = row["end_ps"] - row["start_ps"]
    found: Counter[int] = Counter()
    for row in rows:
        found[row["window"]] += row["exclusive_ps"]
        assert 0 <= row["exclusive_ps"] <= row["total_ps"]
    assert all(found[window] == length[window] for window in found)
