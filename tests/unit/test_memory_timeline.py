"""The timeline of device memory: what allocators reported, and what runs hold."""

from __future__ import annotations

from typing import Any

from hlo_memory import Plan

from hlo_modules import Module, f32
from xprof_py.postprocess import schema
from xprof_py.postprocess.analyses import memory_timeline, program_memory
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.rules.memory_rows import memory_summary, memory_unknown
from xprof_py.postprocess.schema import ArgKind

Event = tuple[str, int, str, int, int, int]
GPU, PINNED = "GPU_0_bfc", "xla_gpu_host_bfc"
EVENTS: list[Event] = [
    # name, ps, allocator, in use after it, most since the process began, its own size
    ("MemoryAllocation", 100, GPU, 700, 900, 300),
    ("MemoryAllocation", 150, PINNED, 5000, 5000, 5000),
    ("MemoryAllocation", 200, GPU, 800, 900, 100),
    ("MemoryDeallocation", 300, GPU, 500, 900, 300),
]


def profile(events: list[Event], program: Profile | None = None) -> Profile:
    texts = sorted({event[2] for event in events})
    args: list[tuple[int, str, int, int]] = []
    for row, (_, _, allocator, in_use, most, size) in enumerate(events):
        args.append((row, "allocator_name", int(ArgKind.TEXT), texts.index(allocator)))
        for key, value in (("bytes_allocated", in_use), ("peak_bytes_in_use", most), ("allocation_bytes", size)):
            args.append((row, key, int(ArgKind.INT), value))
    tables: dict[str, Any] = {
        "events": {
            "line": [0] * len(events),
            "name": [event[0] for event in events],
            "kind": [0] * len(events),
            "start_ps": [event[1] for event in events],
            "duration_ps": [0] * len(events),
        },
        "args": {name: [arg[i] for arg in args] for i, name in enumerate(("event", "key", "kind", "value"))},
        "texts": {"text": texts},
        "lanes": {"device": ["cpu:0"], "ordinal": [0]},
        "runs": {
            "lane": [0],
            "program": [None if program is None else 0],
            "run_id": [1],
            "launch": [None],
            "step": [None],
            "start_ps": [10],
            "end_ps": [90],
            "join": ["none"],
        },
    }
    bare = Profile("host0", 0, 0, 1000, {} if program is None else program.tables)
    return bare.with_tables(**{name: schema.table(name, columns) for name, columns in tables.items()})


def program() -> Profile:
    hlo = Module()
    main = hlo.computation("main", entry=True)
    (x,) = main.parameters(f32(1000))
    out = main.op("fusion", f32(1000), x)
    plan = Plan(hlo)
    plan.allocation("argument", (x, 4000))
    plan.allocation("output", (out, 4000))
    return plan.profile()


def tables_of(one: Profile) -> dict[str, Any]:
    return {
        **memory_timeline.finish(memory_timeline.partial(one)),
        **program_memory.finish(program_memory.partial(one)),
    }


def rows_of(one: Profile) -> list[tuple[Any, ...]]:
    names = ("basis", "device", "start_ps", "end_ps", "bytes", "changed_bytes", "peak_bytes", "program")
    return [tuple(row[name] for name in names) for row in tables_of(one)["memory_timeline"].to_pylist()]


def test_bytes_in_use_hold_until_the_allocators_next_event() -> None:
    assert rows_of(profile(EVENTS)) == [
        ("allocator", GPU, 100, 200, 700, 300, 900, None),
        ("allocator", GPU, 200, 300, 800, 100, 900, None),
        ("allocator", GPU, 300, 1000, 500, -300, 900, None),
        ("allocator", PINNED, 150, 1000, 5000, 5000, 5000, None),
    ]


def test_a_run_holds_what_its_program_holds() -> None:
    assert rows_of(profile([], program())) == [("program", "cpu:0", 10, 90, 8000, None, None, "jit_f")]


def test_the_peak_of_the_capture_is_not_that_of_the_process() -> None:
    gpu, pinned = tables_of(profile(EVENTS))["memory_allocators"].to_pylist()
    assert (gpu["allocator"], gpu["peak_bytes"], gpu["at_ps"], gpu["ever_peak_bytes"]) == (GPU, 800, 200, 900)
    assert (gpu["host_memory"], pinned["host_memory"]) == (False, True)


def test_the_summary_takes_the_devices_allocator_where_there_is_one() -> None:
    """Memory of the host is no device memory, however much of it there is."""
    memory = memory_summary(tables_of(profile(EVENTS, program())))
    assert memory is not None
    assert (memory["peak_bytes"], memory["basis"], memory["device"]) == (800, "allocator", GPU)
    assert (memory["program"], memory["parts"]["held"]) == ("jit_f", 8000)


def test_the_summary_takes_the_largest_program_that_ran_elsewhere() -> None:
    memory = memory_summary(tables_of(profile([], program())))
    assert memory is not None
    assert (memory["peak_bytes"], memory["basis"], memory["runs"]) == (8000, "program", 1)
    assert [row["text"] for row in memory["advice"]] == [
        "donate parameter.1 (donate_argnums), if unused after the call: an output has its shape"
    ]
    assert memory["advice"][0]["saves_bytes"] == 4000


def test_a_program_that_ran_and_says_nothing_is_counted() -> None:
    silent = program()
    silent = silent.with_tables(**{name: schema.empty(name) for name in ("hlo_allocations", "hlo_buffers")})
    tables = tables_of(profile(EVENTS, silent))
    (row,) = tables["program_memory"].to_pylist()
    assert (row["basis"], row["runs"], row["held_bytes"]) == ("unknown", 1, None)
    memory = memory_summary(tables)
    assert memory is not None
    assert (memory["programs"], memory["programs_unknown"], memory["program"]) == ([], 1, None)


def test_nothing_known_is_null_and_says_so() -> None:
    nothing = Profile("host0", 0, 0, 1000)
    assert memory_summary(tables_of(nothing)) is None
    assert memory_unknown()["code"] == "memory_unknown"


def test_an_event_that_does_not_say_how_much_is_in_use_is_passed_over() -> None:
    one = profile(EVENTS)
    keys = one["args"].filter([key != "bytes_allocated" for key in one["args"]["key"].to_pylist()])
    assert tables_of(one.with_tables(args=keys))["memory_timeline"].num_rows == 0


def test_merging_in_any_order_gives_the_same_tables() -> None:
    one, two = memory_timeline.partial(profile(EVENTS)), memory_timeline.partial(profile([], program()))
    ab, ba = (memory_timeline.finish(memory_timeline.merge(*pair)) for pair in ((one, two), (two, one)))
    assert ab == ba
