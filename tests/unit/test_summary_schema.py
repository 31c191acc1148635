"""summary.json and `diff --json`, version 1: whatever is made keeps the schema, and the schema keeps its fields."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from conformance.case_text import read_case
from conformance.profile_tables import profile_of
from schema_pages import PAGES, frozen_file, frozen_lines, page, read_schema
from summary_contract import section_of, validator, violations
from xprof_py.cli import main
from xprof_py.postprocess.analyses import program_memory
from xprof_py.postprocess.fleet.analysis import analyse, partials, reduce_partials
from xprof_py.postprocess.hlo import peaks
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.rules.code_rows import launch_bound
from xprof_py.postprocess.rules.memory_rows import memory_summary
from xprof_py.postprocess.rules.observer import observer_summary
from xprof_py.postprocess.schema import CLASSES, SCHEMA_VERSION

DATA = Path(__file__).parent.parent / "data" / "jax_cpu"
RECORDED = sorted(file.name.split(".")[0] for file in DATA.glob("*.xplane.pb.gz"))
CASES = sorted((Path(__file__).parent.parent / "conformance" / "cases").glob("*.case"))
ALLOCATOR = {"host": "vm", "allocator": "GPU_0_bfc", "host_memory": False, "peak_bytes": 800, "at_ps": 200}
ALLOCATOR |= {"ever_peak_bytes": 900, "start_bytes": 700, "events": 3}
SAMPLES = ("planted_recompile", "planted_h2d", "transformer_blocking")


@cache
def summary_of(name: str) -> dict[str, Any]:
    found = analyse([DATA / f"{name}.xplane.pb.gz"]).summary
    read_back: dict[str, Any] = json.loads(json.dumps(found))
    assert read_back == found, "a summary holds JSON values alone"
    return found


@pytest.mark.parametrize("name", RECORDED)
def test_the_summary_of_a_recorded_capture_keeps_the_schema(name: str) -> None:
    assert violations(summary_of(name)) == []


@pytest.mark.parametrize("file", CASES, ids=lambda file: file.stem)
def test_the_summary_of_a_conformance_case_keeps_the_schema(file: Path) -> None:
    part = partials(profile_of(read_case(file), "shard"))
    assert violations(json.loads(json.dumps(reduce_partials([part], []).summary))) == []


def test_the_summary_of_several_hosts_keeps_the_schema(tmp_path: Path) -> None:
    """Two processes of one machine, whose clock they share, and a host that cannot be read."""
    (tmp_path / "bad.xplane.pb").write_bytes(b"\x0a\xff\x01")
    files = [DATA / f"planted_{name}.xplane.pb.gz" for name in ("compute", "memory")]
    found = analyse([*files, tmp_path / "bad.xplane.pb"]).summary
    assert [row["offset_ns"] for row in found["clocks"]] == [0, 0]
    assert violations(found) == []


def test_peaks_keep_the_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"device": "CPU", "flops_per_s": {"f32": 50 * 10**9}, "memory_bytes_per_s": 20 * 10**9}
    monkeypatch.setenv("XPROF_PY_PEAKS", json.dumps(known))
    found = analyse([DATA / "planted_compute.xplane.pb.gz"]).summary
    assert found["roofline"]["peaks"]
    assert peaks.Peaks("x", "y").document().keys() <= found["roofline"]["peaks"][0].keys()
    assert violations(found) == []


def test_what_no_recorded_capture_has_keeps_the_schema() -> None:
    """Times of steps outside the recording, launching as the limit in most steps, and allocators without programs."""
    times = {"name": "train", "before_ns": [10**8] * 6, "inside_ns": [2 * 10**8] * 6, "after_ns": []}
    process = {"host": "vm", "observer": times, "overhead": {"recorder": {"dropped": 3}}}
    memory = memory_summary(
        {
            **program_memory.finish(program_memory.partial(Profile("vm", 0, 0, 1000))),
            "memory_allocators": pa.Table.from_pylist([ALLOCATOR]),
        }
    )
    sums = {"windows": 4, "launch_bound": 4, "launches": 40, "runs": 40, "dispatch_ps": 4 * 10**9, "busy_ps": 10**9}
    sums |= {"idle_ps": 10**9, "window_ps": 8 * 10**9, "function": "", "source": ""}
    made = {
        "observer": observer_summary([process]),
        "memory": memory,
        "launch_bound": launch_bound(sums, lanes=1),
    }
    assert made["observer"]["slower"]
    assert memory is not None
    assert (memory["basis"], memory["program_id"]) == ("allocator", None)
    assert violations({**summary_of("planted_compute"), **made}) == []
    for section, found in made.items():
        for name in found:
            assert violations({**summary_of("planted_compute"), section: {k: found[k] for k in found if k != name}})
    row = memory["allocators"][0]
    assert set(row) == set(ALLOCATOR)
    assert violations({**summary_of("planted_compute"), "memory": {**memory, "allocators": [{**row, "at_ps": None}]}})


def test_every_field_of_a_summary_is_described() -> None:
    """Of the recorded captures: no key that the schema does not name."""
    schema = read_schema("summary")

    def named(found: Any, part: dict[str, Any], path: str) -> Iterator[str]:
        parts = [part, *part.get("anyOf", ())]
        parts += [schema["$defs"][p["$ref"].rsplit("/", 1)[1]] for p in parts if "$ref" in p]
        if isinstance(found, list):
            items = next((p["items"] for p in parts if "items" in p), {})
            for value in found:
                yield from named(value, items, f"{path}[]")
        elif isinstance(found, dict):
            known = {key: value for p in parts for key, value in p.get("properties", {}).items()}
            rest = next(
                (p["additionalProperties"] for p in parts if p.get("additionalProperties") not in (None, True)), None
            )
            for key, value in found.items():
                if key in known or rest is not None:
                    yield from named(value, known.get(key, rest), f"{path}.{key}")
                else:
                    yield f"{path}.{key}"

    assert sorted({path for name in RECORDED for path in named(summary_of(name), schema, "")}) == []


@pytest.mark.parametrize("name", PAGES)
def test_the_page_says_what_the_schema_says(name: str) -> None:
    """Every property with its type, unit and when it is null; `python tests/schema_pages.py` writes it."""
    assert PAGES[name].read_text(encoding="utf-8").endswith(page(name))


@pytest.mark.parametrize("name", PAGES)
def test_every_property_is_described(name: str) -> None:
    def walk(schema: Any, path: str) -> Iterator[str]:
        if isinstance(schema, dict):
            for key, found in schema.get("properties", {}).items():
                if not found.get("description"):
                    yield f"{path}.{key} has no description"
                nullable = "null" in str(found.get("type", "")) or {"type": "null"} in found.get("anyOf", ())
                if nullable != bool(found.get("x-null")):
                    yield f"{path}.{key} does not say when it is null, or says it and never is"
            for key, found in schema.items():
                yield from walk(found, f"{path}.{key}")
        elif isinstance(schema, list):
            for found in schema:
                yield from walk(found, path)

    assert list(walk(read_schema(name), "")) == []


@pytest.mark.parametrize("name", PAGES)
def test_no_field_of_version_1_is_removed_or_changed(name: str) -> None:
    """The lines of this file were written once and are added to alone."""
    frozen = frozen_file(name).read_text(encoding="utf-8").splitlines()
    assert len(frozen) > 50
    assert set(frozen) - set(frozen_lines(name)) == set()


PROMISED = """
schema_version hosts[].host hosts[].hostname hosts[].process_index hosts[].devices hosts[].source
steps.count steps.phases steps.missing[].step steps.missing[].host steps.missing[].why
step_ms breakdown $quantiles.median $quantiles.p10 $quantiles.p90
$class_amounts.exclusive_s $class_amounts.total_s $class_amounts.share lanes outside_steady
verdict.bottleneck verdict.share verdict.step_ms verdict.step_ms_without verdict.evidence
verdict.advice accounted
clocks[].host clocks[].offset_ns clocks[].drift_ppm clocks[].error_ns clocks[].method clocks[].status
straggler.host straggler.share straggler.lost_ms_per_step straggler.cause top_ops
compiles.count compiles.total_s compiles.during_steps overhead diagnostics
"""


def test_the_frozen_fields_are_those_of_the_plan() -> None:
    """What was promised before there was a schema."""
    paths = {line.split(" ")[0] for line in frozen_file("summary").read_text(encoding="utf-8").splitlines()}
    assert [path for path in PROMISED.split() if path not in paths] == []
    assert {f"$breakdown.{name}" for name in CLASSES} <= paths
    assert validator("summary").schema["properties"]["schema_version"]["const"] == SCHEMA_VERSION


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every object key of a JSON value, as the way to it; of a list the first entry alone."""
    if isinstance(value, dict):
        for key, found in value.items():
            yield (*path, key)
            yield from places(found, (*path, key))
    elif isinstance(value, list) and value:
        yield from places(value[0], (*path, 0))


FREE_KEYS = ("overhead", "by_class", "without_ms", "flops_per_s", "by_name", "by_kind", "why")
"""Maps whose keys are data: one that is not there is no missing field."""


@pytest.mark.parametrize("name", SAMPLES)
def test_a_field_that_is_gone_or_of_another_type_is_noticed(name: str) -> None:
    """Takes away, and replaces by something no field is, every single field of a real summary."""
    summary = summary_of(name)
    tried = 0
    for way in places(summary):
        optional = way[-2:-1] and way[-2] in (*FREE_KEYS, "op_phases")
        optional = optional or (way[0] == "outside_steady" and way[1:] in (("warmup",), ("outlier",), ("partial",)))
        for change in ("remove", "replace"):
            if change == "remove" and optional:
                continue
            # The rest keeps the schema: of what is deeper, only its top-level field is read again.
            first = {way[0]: copy.deepcopy(summary[way[0]])}
            parent = first
            for key in way[:-1]:
                parent = parent[key]
            if change == "remove":
                del parent[way[-1]]
            else:
                parent[way[-1]] = [True, [None]]
            if len(way) == 1:
                noticed = violations({**{k: v for k, v in summary.items() if k != way[0]}, **first})
            else:
                noticed = not section_of("summary", way[0]).is_valid(first[way[0]])
            assert noticed, f"{way} {change}d, and nobody noticed"
            tried += 1
    assert tried > 200


def test_fields_may_be_added_anywhere() -> None:
    def extended(value: Any, key: str = "") -> Any:
        if isinstance(value, list):
            return [extended(found) for found in value]
        if isinstance(value, dict):
            longer = {name: extended(found, name) for name, found in value.items()}
            # A map from data has no room for a field of another kind.
            return longer if key in (*FREE_KEYS, "op_phases") else {**longer, "new": {"of": ["a later version"]}}
        return value

    assert violations(extended(summary_of("planted_recompile"))) == []


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("planted_input", "planted_recompile"),
        ("mlp_async40", "mlp_async40"),
        ("collectives_4dev", "transformer_async20"),
    ],
)
def test_a_comparison_keeps_its_schema(
    a: str, b: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    files = [str(DATA / f"{name}.xplane.pb.gz") for name in (a, b)]
    code = main(["diff", *files, "--json", "--fail-over", "5%", "--fail-over", "op=1%", "--fail-over", "compiler=1%"])
    found = json.loads(capsys.readouterr().out)
    assert code == (3 if found["regression"] else 0)
    assert violations(found, "diff") == []
    assert {"a", "b"} <= found.keys()
    if found["ops"]:
        del found["ops"][0]["op_in_a"]
        assert violations(found, "diff")
