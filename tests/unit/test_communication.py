"""Communication per kind: an oracle that looks at every instant, payloads and bus bandwidth worked out by hand."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hlo_modules import Module, f32
from xprof_py.postprocess import schema
from xprof_py.postprocess.analyses import communication
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.schema import BUSY_CLASSES

END = 60
Leaf = tuple[int, int, str, int, int, int]
"""(row of hlo_ops, run, class, start, end, open end)."""


def measured(tables: dict[str, Any], leaves: list[Leaf], cuts: list[int]) -> Profile:
    """One lane whose windows of steps end at ``cuts``, then tail. Leaves in order of start."""
    edges = [0, *cuts, END]
    steps = len(cuts)
    columns: dict[str, dict[str, Any]] = {
        "programs": {"program_id": [1], "name": ["jit_f"], "hlo": [None]},
        "lanes": {"device": ["cpu:0"], "ordinal": [0]},
        "steps": {
            "name": ["train"] * steps,
            "number": range(steps),
            "occurrence": [0] * steps,
            "parent": [None] * steps,
            "line": [0] * steps,
            "start_ps": edges[:steps],
            "end_ps": cuts,
            "phase": ["steady"] * steps,
            "reason": [""] * steps,
            "source": ["annotated"] * steps,
            "tokens": [None] * steps,
            "model_flops": [None] * steps,
        },
        "windows": {
            "lane": [0] * (steps + 1),
            "kind": ["step"] * steps + ["tail"],
            "step": [*range(steps), None],
            "start_ps": edges[:-1],
            "end_ps": edges[1:],
        },
        "ops": {
            "event": range(len(leaves)),
            "lane": [0] * len(leaves),
            "run": [leaf[1] for leaf in leaves],
            "hlo_op": [leaf[0] for leaf in leaves],
            "class": [leaf[2] for leaf in leaves],
            "leaf": [True] * len(leaves),
            "start_ps": [leaf[3] for leaf in leaves],
            "duration_ps": [leaf[4] - leaf[3] for leaf in leaves],
            "join": ["stated"] * len(leaves),
            "open_ps": [leaf[5] - leaf[4] for leaf in leaves],
            "stated_op": [None] * len(leaves),
        },
        "events": {
            "line": [0] * len(leaves),
            "name": ["op"] * len(leaves),
            "kind": [0] * len(leaves),
            "start_ps": [leaf[3] for leaf in leaves],
            "duration_ps": [leaf[4] - leaf[3] for leaf in leaves],
        },
    }
    joined = {name: schema.table(name, made) for name, made in columns.items()}
    return Profile("host0", 0, 0, END, {**tables, **joined})


def made() -> tuple[dict[str, Any], dict[str, int]]:
    """A program with a started all-reduce, an all-gather, a copy, a dot; the rows of its ops."""
    hlo = Module()
    main = hlo.computation("main", entry=True)
    (x,) = main.parameters(f32(4))
    ops = {"start": main.op("all-reduce-start", f32(4), x, calls=(hlo.binary("add"),))}
    ops["done"] = main.op("all-reduce-done", f32(4), ops["start"])
    ops["gather"] = main.op("all-gather", f32(8), x)
    ops["copy"] = main.op("copy", f32(4), x)
    ops["dot"] = main.op("dot", f32(), x, x)
    tables = hlo.tables()
    tables.pop("diagnostics")
    return tables, {name: hlo.row(op) for name, op in ops.items()}


TABLES, ROW = made()
CLASS_OF = {"start": "collective", "done": "collective", "gather": "collective", "copy": "memory", "dot": "compute"}
KIND_OF = {"start": "all-reduce", "done": "all-reduce", "gather": "all-gather", "copy": "d2d"}


@st.composite
def lanes(draw: st.DrawFn) -> tuple[list[Leaf], list[tuple[str, int, int]], list[int]]:
    """(leaves, what is in flight between starts and dones: (kind, start, end), cuts)."""
    leaves: list[Leaf] = []
    flights = []
    for run in range(draw(st.integers(1, 2))):
        for name in draw(st.lists(st.sampled_from(["pair", "gather", "copy", "dot"]), max_size=4)):
            start = draw(st.integers(0, 40))
            end = start + draw(st.integers(1, 10))
            if name != "pair":
                opened = end + draw(st.integers(0, 4))
                leaves.append((ROW[name], run, CLASS_OF[name], start, end, opened))
            elif not any(leaf[:2] == (ROW["start"], run) for leaf in leaves):
                done = end + draw(st.integers(0, 8))
                finish = done + draw(st.integers(1, 4))
                leaves.append((ROW["start"], run, "collective", start, end, end))
                leaves.append((ROW["done"], run, "collective", done, finish, finish))
                flights.append(("all-reduce", start, finish))
    cuts = sorted(draw(st.sets(st.integers(1, END - 1), min_size=1, max_size=3)))
    return sorted(leaves, key=lambda leaf: leaf[3]), sorted(flights, key=lambda f: f[1]), cuts


def instant_by_instant(
    leaves: list[Leaf], flights: list[tuple[str, int, int]], until: int
) -> Counter[tuple[str, str, str]]:
    """(class, kind, which time) -> picoseconds in [0, until), by the definition at the head of the analysis."""
    name_of = {row: name for name, row in ROW.items()}
    out: Counter[tuple[str, str, str]] = Counter()
    for now in range(until):
        closed = [leaf for leaf in leaves if leaf[3] <= now < leaf[4]]
        still_open = [leaf for leaf in leaves if leaf[4] <= now < leaf[5]]
        deciding = closed or still_open
        winner = min((BUSY_CLASSES.index(leaf[2]) for leaf in deciding), default=None)
        for name in ("memory", "collective"):
            of_class = [leaf for leaf in leaves if leaf[2] == name and leaf[3] <= now < leaf[5]]
            if of_class:
                kind = KIND_OF[name_of[of_class[0][0]]]
                out[name, kind, "total"] += 1
                out[name, kind, "in_flight"] += 1
                out[name, kind, "exposed"] += winner == BUSY_CLASSES.index(name)
            elif name == "collective":
                for kind, start, end in flights:
                    if start <= now < end:
                        out[name, kind, "in_flight"] += 1
                        out[name, kind, "idle"] += not deciding
                        break
    return out


@settings(max_examples=150, deadline=None)
@given(lanes())
def test_every_instant_is_where_the_definition_puts_it(case: Any) -> None:
    leaves, flights, cuts = case
    profile = measured(TABLES, leaves, cuts)
    found: Counter[tuple[str, str, str]] = Counter()
    count: Counter[str] = Counter()
    for row in communication.finish(communication.partial(profile), ("steady",)).to_pylist():
        for name in ("total", "in_flight", "exposed", "idle"):
            found[row["class"], row["kind"], name] += row[f"{name}_ps"]
        assert row["hidden_ps"] >= 0
        assert row["unpaired"] == 0
        count[row["kind"]] += row["count"]
    in_steps = communication.partial(profile)["phase"].to_pylist().count("steady")
    if in_steps or not leaves:
        assert +found == +instant_by_instant(leaves, flights, cuts[-1])
        assert count["all-reduce"] == sum(start < cuts[-1] for _, start, _ in flights)


def rows_of(hlo: Module, *leaves: Leaf) -> list[dict[str, Any]]:
    tables = hlo.tables()
    tables.pop("diagnostics")
    found: list[dict[str, Any]] = communication.finish(
        communication.partial(measured(tables, list(leaves), [50])), ("steady",)
    ).to_pylist()
    return found


@pytest.mark.parametrize(
    ("opcode", "result", "payload", "network"),
    [
        # Four participants, 1000 f32 each: what nccl-tests calls the bus bytes.
        ("all-reduce", f32(1000), 4000, 2 * 4000 * 3 // 4),
        ("all-gather", f32(4000), 16000, 16000 * 3 // 4),
        ("reduce-scatter", f32(250), 4000, 4000 * 3 // 4),
        ("all-to-all", f32(1000), 4000, 4000 * 3 // 4),
        ("collective-permute", f32(1000), 4000, 4000),
    ],
)
def test_bytes_and_bus_bandwidth_of_a_collective(opcode: str, result: Any, payload: int, network: int) -> None:
    hlo = Module()
    hlo.module.device_assignment.replica_count = 4
    main = hlo.computation("main", entry=True)
    op = main.op(opcode, result, *main.parameters(f32(1000)))
    (row,) = rows_of(hlo, (hlo.row(op), 0, "collective", 0, 10, 10), (hlo.row(op), 1, "collective", 20, 40, 40))
    assert (row["kind"], row["count"]) == (opcode, 2)
    assert row["participants"] == (None if opcode == "collective-permute" else 4)
    assert (int(row["bytes"]), int(row["network_bytes"])) == (2 * payload, 2 * network)
    assert row["bus_bytes_per_s"] == 2 * network * 10**12 // 30


def test_a_group_of_unknown_size_has_no_bandwidth() -> None:
    hlo = Module()
    main = hlo.computation("main", entry=True)
    op = main.op("all-reduce", f32(1000), *main.parameters(f32(1000)))
    (row,) = rows_of(hlo, (hlo.row(op), 0, "collective", 0, 10, 10))
    assert (row["participants"], row["network_bytes"], row["bus_bytes_per_s"]) == (None, None, None)
    assert int(row["bytes"]) == 4000


@pytest.mark.parametrize(("to", "come_from", "kind"), [(5, 0, "d2h"), (0, 5, "h2d"), (0, 0, "d2d"), (1, 0, "d2d")])
def test_copies_by_the_memories_they_join(to: int, come_from: int, kind: str) -> None:
    hlo = Module()
    main = hlo.computation("main", entry=True)
    (x,) = main.parameters(f32(1000))
    x.shape.layout.memory_space = come_from
    copy = main.op("copy", f32(1000), x)
    copy.shape.layout.memory_space = to
    name = "memory" if kind == "d2d" else "host_device"
    (row,) = rows_of(hlo, (hlo.row(copy), 0, name, 0, 10, 10))
    assert (row["kind"], int(row["bytes"])) == (kind, 4000)


def test_a_done_without_its_start_stands_alone_and_is_counted() -> None:
    done = (ROW["done"], 0, "collective", 5, 9, 9)
    whole = [(ROW["start"], 1, "collective", 20, 21, 21), (ROW["done"], 1, "collective", 30, 31, 31)]
    profile = measured(TABLES, [done, *whole], [50])
    (row,) = communication.finish(communication.partial(profile), ("steady",)).to_pylist()
    assert (row["count"], row["unpaired"]) == (2, 1)
    assert (row["total_ps"], row["in_flight_ps"], row["idle_ps"]) == (4 + 2, 4 + 11, 9)
    assert row["bus_bytes_per_s"] is None


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("MemcpyD2H", "d2h"),
        ("CUDA memcpy Host-to-Device", "h2d"),
        ("[CUDA memcpy Device-to-Device]", "d2d"),
        ("MemcpyHtoD (Pageable -> Device)", "h2d"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all-reduce"),
        ("ncclKernel_ReduceScatter_RING_LL_Sum_float", "reduce-scatter"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "collective-permute"),
        ("H2D Dispatch", "h2d"),
        ("mystery", "other"),
    ],
)
def test_kinds_without_hlo_go_by_the_name(name: str, kind: str) -> None:
    profile = measured(TABLES, [(ROW["dot"], 0, "collective", 0, 9, 9)], [50])
    ops = schema.table("ops", {**profile["ops"].to_pydict(), "hlo_op": [None]})
    events = schema.table("events", {**profile["events"].to_pydict(), "name": [name]})
    (row,) = communication.finish(
        communication.partial(profile.with_tables(ops=ops, events=events)), ("steady",)
    ).to_pylist()
    assert row["kind"] == kind


def test_merging_adds_up_and_its_order_does_not_matter() -> None:
    parts = [
        communication.partial(measured(TABLES, [(ROW["gather"], 0, "collective", 0, n, n)], [50])) for n in (1, 7, 40)
    ]
    a, b, c = parts
    left = communication.finish(communication.merge(communication.merge(a, b), c), ("steady",))
    right = communication.finish(communication.merge(c, communication.merge(b, a)), ("steady",))
    assert left.equals(right)
    assert left["exposed_ps"].to_pylist() == [48]
