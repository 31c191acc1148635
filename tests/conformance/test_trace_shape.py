"""The events that cases become are those of real captures, and the two ways to the reader's tables are one."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from conformance.case_text import Case, parse_case, read_case
from conformance.profile_tables import profile_of
from conformance.trace_events import build_lines
from conformance.xspace_bytes import xspace_of
from xprof_py.postprocess.hlo.module import read_programs
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.readers.xspace import read_xspace
from xspace_schema import XSpace

HERE = Path(__file__).parent
CASES = sorted((HERE / "cases").glob("*.case"))
TRACES = Path(os.environ.get("XPROF_PY_REAL_TRACES") or HERE.parents[2] / "shared" / "traces") / "jax_cpu"

EVERYTHING = """
title: every kind of event once
capture 0..100
thread main
  step 0 0..90
    put 0..1
    input 1..2
    dispatch f 5..50
      lower 6..8
      compile 8..40
      launch 45..50
    wait 50..70
    launch g 70..72
lane 0
  copy 0..2
  run f 1
    dot.1 50..55 end 58
  run g -5
    add.1 73..75
"""

MANY_LANES = """
title: a launch for several lanes
capture 0..100
thread main
  step 0 0..90
    launch f 5..50 id 7
lane 0
  run f 7
    dot.1 50..55
lane 1
  run f 7
    dot.1 50..55
"""

USER_NAMES = {"input", "checkpoint"}
Shape = tuple[str, str, tuple[str, ...]]


def shape(line: str, name: str, keys: list[str]) -> Shape:
    """Which line, which event, which arguments: free of ids, program names and of the source place."""
    line = line.split("/")[0]
    known = [key for key in keys if key not in ("_src", "xprof_tid")]
    if "hlo_op" in known:
        return "pool", "OP", tuple(known)
    if name.startswith("end: "):
        return "pool", "end: OP", tuple(known)
    name = re.sub(r"^\[\d+\]", "[N]", re.sub(r"\((?!wait)[^()]*\)", "(F)", name))
    return line, name, tuple(known)


def real_shapes(names: list[str]) -> set[Shape]:
    found = set()
    for name in names:
        paths = sorted(TRACES.glob(f"{name}/**/*.xplane.pb")) or [TRACES / f"{name}.xplane.pb"]
        for path in paths:
            space = XSpace.FromString(path.read_bytes())
            for plane in space.planes:
                keys = {number: entry.name for number, entry in plane.stat_metadata.items()}
                for line in plane.lines:
                    for event in line.events:
                        event_name = plane.event_metadata[event.metadata_id].name
                        found.add(shape(line.name, event_name, [keys[s.metadata_id] for s in event.stats]))
    return found


@pytest.mark.real_traces
@pytest.mark.parametrize(
    ("text", "names"),
    [
        (EVERYTHING, ["planted_recompile", "planted_h2d", "one_process/transformer_blocking"]),
        (MANY_LANES, ["one_process/collectives_4dev"]),
    ],
    ids=["everything", "many_lanes"],
)
def test_every_event_of_a_case_is_one_of_a_real_capture(text: str, names: list[str]) -> None:
    if not TRACES.is_dir():
        pytest.skip(f"no real traces at {TRACES}: set XPROF_PY_REAL_TRACES")
    case = parse_case(text, "shape")
    lines = build_lines(case, "xspace")
    built = {
        shape(line.name, event.name, [key for key, _ in event.args])
        for line in lines
        for event in line.events
        if event.name not in USER_NAMES
    }
    assert len(built) >= 5
    assert built - real_shapes(names) == set()


def plain(profile: Profile, name: str) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = profile[name].to_pylist()
    return [{key: value for key, value in row.items() if key not in ("clock_domain", "hlo")} for row in rows]


def arguments(profile: Profile) -> list[tuple[object, ...]]:
    texts = profile["texts"].column("text").to_pylist()
    return [
        (row["event"], row["key"], texts[row["value"]] if row["kind"] == 4 else row["value"])
        for row in profile["args"].to_pylist()
    ]


@pytest.fixture(params=[path for path in CASES if not read_case(path).needs_shard], ids=lambda path: path.stem)
def case(request: pytest.FixtureRequest) -> Case:
    return read_case(request.param)


def test_tables_written_directly_are_those_that_the_reader_delivers(case: Case, tmp_path: Path) -> None:
    path = tmp_path / "rank0.xplane.pb"
    path.write_bytes(xspace_of(case))
    direct, read = profile_of(case, "xspace"), read_xspace(path)
    for name in ("lines", "events", "programs", "plane_args"):
        assert plain(direct, name) == plain(read, name)
    assert arguments(direct) == arguments(read)
    assert (direct.origin_ns, direct.capture_end_ps) == (read.origin_ns, read.capture_end_ps)
    hlo = read.with_tables(**{k: v for k, v in read_programs(read["programs"]).items() if k != "diagnostics"})
    assert plain(direct, "hlo_computations") == plain(hlo, "hlo_computations")
    assert plain(direct, "program_functions") == plain(hlo, "program_functions")
    assert len(direct["hlo_operands"]) == len(hlo["hlo_operands"])
    assert len(direct["hlo_calls"]) == len(hlo["hlo_calls"])
    ops = [sorted(map(str, plain(profile, "hlo_ops"))) for profile in (direct, hlo)]
    assert ops[0] == ops[1]
