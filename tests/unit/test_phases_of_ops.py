"""phases_of_ops: forward, backward, remat and optimizer from the paths of ops and from what reads what."""

from __future__ import annotations

from typing import Any

import pytest

from xprof_py.postprocess import schema
from xprof_py.postprocess.analyses import phases_of_ops
from xprof_py.postprocess.analyses.phases_of_ops import PHASES, phase_codes
from xprof_py.postprocess.profile import Profile

FORWARD, BACKWARD = "jit(train)/jvp(block0)/dot_general", "jit(train)/transpose(jvp(block0))/dot_general"


class Program:
    """One program: ``op(name, path, *operands)`` in the entry, or in another computation."""

    def __init__(self) -> None:
        self.ops: list[dict[str, Any]] = []
        self.row: dict[str, int] = {}
        self.operands: list[tuple[int, int]] = []
        self.calls: list[tuple[int, int]] = []

    def op(
        self, name: str, path: str = "", *reads: str, opcode: str = "fusion", inside: int = 0, calls: int = -1
    ) -> str:
        self.row[name] = len(self.ops)
        self.ops.append({"name": name, "path": path, "opcode": opcode, "computation": inside})
        self.operands += [(self.row[name], self.row[operand]) for operand in reads]
        if calls >= 0:
            self.calls.append((self.row[name], calls))
        return name

    def profile(self, times: dict[str, int] | None = None) -> Profile:
        """The profile; ``times``: op -> duration in ps of its one execution, in one run of step 0."""
        times = times or {}
        executed = list(times)
        tables: dict[str, Any] = {
            "programs": {"program_id": [1], "name": ["jit_train"], "hlo": [None]},
            "hlo_ops": {
                "program": [0] * len(self.ops),
                "name": [op["name"] for op in self.ops],
                "opcode": [op["opcode"] for op in self.ops],
                "computation": [op["computation"] for op in self.ops],
                "op_name": [op["path"] for op in self.ops],
                "file": [""] * len(self.ops),
                "source_line": [0] * len(self.ops),
                "function": [""] * len(self.ops),
            },
            "hlo_operands": {"op": [a for a, _ in self.operands], "operand": [b for _, b in self.operands]},
            "hlo_calls": {"op": [a for a, _ in self.calls], "computation": [b for _, b in self.calls]},
            "steps": {
                "name": ["train"],
                "number": [0],
                "occurrence": [0],
                "parent": [None],
                "line": [0],
                "start_ps": [0],
                "end_ps": [10**9],
                "phase": ["steady"],
                "reason": [""],
                "source": ["annotated"],
                "tokens": [None],
                "model_flops": [None],
            },
            "runs": {
                "lane": [0],
                "program": [0],
                "run_id": [1],
                "launch": [None],
                "step": [0],
                "start_ps": [0],
                "end_ps": [10**9],
                "join": ["order"],
            },
            "ops": {
                "event": range(len(executed)),
                "lane": [0] * len(executed),
                "run": [0] * len(executed),
                "hlo_op": [self.row[name] for name in executed],
                "class": ["compute"] * len(executed),
                "leaf": [True] * len(executed),
                "start_ps": [0] * len(executed),
                "duration_ps": list(times.values()),
                "join": ["stated"] * len(executed),
                "open_ps": [7] * len(executed),
                "stated_op": [None] * len(executed),
            },
        }
        bare = Profile("host0", 0, 0, 10**9)
        return bare.with_tables(**{name: schema.table(name, columns) for name, columns in tables.items()})

    def phases(self) -> dict[str, str | None]:
        codes = phase_codes(self.profile(), [0]).tolist()
        return {op["name"]: (None, *PHASES)[code] for op, code in zip(self.ops, codes, strict=True)}


@pytest.mark.parametrize(
    ("path", "phase"),
    [
        ("jit(train)/jvp()/tanh", "forward"),
        ("jit(train)/jvp(block0)/attn/jit(_var)/mul", "forward"),
        ("jit(train)/jvp(checkpoint)/tanh", "forward"),
        ("jit(train)/transpose(jvp(block0))/attn/transpose", "backward"),
        ("jit(train)/transpose(jvp(jvp()))/checkpoint/dot_general", "backward"),
        ("jit(train)/transpose(jvp())/mul;transpose(jvp())/broadcast_in_dim", "backward"),
        ("jit(train)/transpose(jvp(jvp()))/checkpoint/rematted_computation/tanh", "remat"),
        ("jit(train)/while/body/closed_call/transpose(jvp())/while/body/sub", "backward"),
        ("jit(train)/jit(transpose)/transpose", None),
        ("jit(my_jvp(x))/add", None),
        ("jit(train)/rematted_computation_of_mine/add", None),
    ],
)
def test_a_path_says_its_phase(path: str, phase: str | None) -> None:
    program = Program()
    program.op("op", path)
    program.op("other", FORWARD)  # so that the program is one that differentiates
    assert program.phases()["op"] == phase


def test_what_reads_gradients_is_the_optimizer_and_what_comes_before_is_not() -> None:
    program = Program()
    program.op("x", "x", opcode="parameter")
    program.op("normalize", "jit(train)/div", "x")
    program.op("forward", FORWARD, "normalize")
    program.op("metric", "jit(train)/reduce_sum", "forward")
    program.op("backward", BACKWARD, "forward")
    program.op("clip", "jit(train)/min", "backward")
    program.op("momentum", "jit(train)/adam/mul", "clip", "x")
    program.op("schedule", "jit(train)/adam/pow", "x")
    assert program.phases() == {
        "x": None,
        "normalize": None,
        "forward": "forward",
        "metric": None,
        "backward": "backward",
        "clip": "optimizer",
        "momentum": "optimizer",
        "schedule": None,
    }


def test_a_copy_without_a_path_belongs_to_what_it_copies() -> None:
    program = Program()
    program.op("forward", FORWARD)
    program.op("backward", BACKWARD, "forward")
    program.op("copy.1", "", "forward")
    program.op("copy.2", "", "backward")
    program.op("both", "", "forward", "backward")
    phases = program.phases()
    assert (phases["copy.1"], phases["copy.2"], phases["both"]) == ("forward", "backward", "optimizer")


def test_what_xla_computes_again_is_remat() -> None:
    program = Program()
    program.op("fusion.3", FORWARD)
    program.op("fusion.3.remat", FORWARD)
    program.op("fusion.3.remat2.1", FORWARD)
    assert list(program.phases().values()) == ["forward", "remat", "remat"]


def test_a_loop_that_holds_a_backward_pass_makes_gradients() -> None:
    """Gradient accumulation: forward and backward lie in the body, and the sum over microbatches too."""
    program = Program()
    program.op("body.forward", FORWARD, inside=1)
    program.op("body.backward", BACKWARD, "body.forward", inside=1)
    program.op("body.accumulate", "jit(train)/while/body/add", "body.backward", inside=1)
    program.op("body.counter", "jit(train)/while/body/add", inside=1)
    program.op("loop", "jit(train)/while", opcode="while", calls=1)
    program.op("update", "jit(train)/sub", "loop")
    phases = program.phases()
    assert phases["body.accumulate"] == phases["update"] == "optimizer"
    assert phases["body.counter"] is phases["loop"] is None


def test_a_body_takes_the_phase_of_the_loop_that_calls_it() -> None:
    program = Program()
    program.op("inner", "", inside=2)
    program.op("call", "", opcode="call", inside=1, calls=2)
    program.op("loop", "jit(train)/transpose(jvp())/while", opcode="while", calls=1)
    assert program.phases() == {"inner": "backward", "call": "backward", "loop": "backward"}


def test_a_program_that_does_not_differentiate_has_no_phases() -> None:
    program = Program()
    program.op("dot", "jit(evaluate)/dot_general")
    program.op("add", "jit(evaluate)/add", "dot")
    assert set(program.phases().values()) == {None}


def test_times_are_summed_by_phase_and_merged_exactly() -> None:
    program = Program()
    program.op("forward", FORWARD)
    program.op("backward", BACKWARD, "forward")
    program.op("update", "jit(train)/sub", "backward")
    program.op("schedule", "jit(train)/pow")
    part = phases_of_ops.partial(program.profile({"forward": 100, "backward": 230, "update": 30, "schedule": 1}))
    finished = phases_of_ops.finish(phases_of_ops.merge(part, part), ("steady",))
    assert [(row["op_phase"], row["class"], row["total_ps"], row["count"]) for row in finished.to_pylist()] == [
        ("backward", "compute", 2 * 237, 2),
        ("forward", "compute", 2 * 107, 2),
        ("optimizer", "compute", 2 * 37, 2),
        (None, "compute", 2 * 8, 2),
    ]


def test_a_profile_without_ops_has_no_phases() -> None:
    assert phases_of_ops.partial(Profile("host0", 0, 0, 0)).num_rows == 0
