"""read_programs: instructions, edges and the user's line of each instruction."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from xprof_py.postprocess import schema
from xprof_py.postprocess.hlo.cost import CostModel
from xprof_py.postprocess.hlo.module import program_functions, read_programs
from xprof_py.postprocess.hlo.shapes import Instructions
from xspace_schema import HloProto

JAX = "/env/lib/python3.11/site-packages/jax/_src/core.py"
LIBRARY = "/env/lib/python3.11/site-packages/optax/update.py"
STDLIB = "/usr/lib/python3.11/contextlib.py"


class Hlo:
    """Builds one module; ``frame`` returns the 1-based id that instructions carry."""

    def __init__(self, name: str = "jit_f", entry: int = 1) -> None:
        self.message = HloProto()
        self.module = self.message.hlo_module
        self.module.name, self.module.entry_computation_id = name, entry
        self.index = self.module.stack_frame_index

    def frame(self, file: str, function: str, line: int, parent: int = 0) -> int:
        for names, name in ((self.index.file_names, file), (self.index.function_names, function)):
            if name not in names:
                names.append(name)
        self.index.file_locations.add(
            file_name_id=list(self.index.file_names).index(file) + 1,
            function_name_id=list(self.index.function_names).index(function) + 1,
            line=line,
        )
        self.index.stack_frames.add(file_location_id=len(self.index.file_locations), parent_frame_id=parent)
        return len(self.index.stack_frames)

    def computation(self, number: int, name: str = "", root: int = 0) -> Any:
        return self.module.computations.add(id=number, name=name or f"computation.{number}", root_id=root)

    def op(self, computation: Any, number: int, name: str, opcode: str = "add", **fields: Any) -> Any:
        op = computation.instructions.add(id=number, name=name, opcode=opcode)
        op.operand_ids.extend(fields.get("operands", ()))
        op.called_computation_ids.extend(fields.get("calls", ()))
        op.metadata.op_name = fields.get("op_name", "")
        op.metadata.stack_frame_id = fields.get("frame", 0)
        op.metadata.source_file = fields.get("source_file", "")
        op.metadata.source_line = fields.get("source_line", 0)
        return op


def programs(*modules: bytes | None, names: tuple[str, ...] = ()) -> pa.Table:
    return schema.table(
        "programs",
        {
            "program_id": [10 + row for row in range(len(modules))],
            "name": list(names) or ["jit_f"] * len(modules),
            "hlo": pa.array(modules, pa.large_binary()),
        },
    )


def read(*modules: Hlo) -> dict[str, pa.Table]:
    tables = read_programs(programs(*(module.message.SerializeToString() for module in modules)))
    for name, table in tables.items():
        assert table.schema == schema.TABLES[name], name
        table.validate(full=True)
    return tables


def places(tables: dict[str, pa.Table]) -> dict[str, tuple[str, int, str]]:
    return {row["name"]: (row["file"], row["source_line"], row["function"]) for row in tables["hlo_ops"].to_pylist()}


def test_rows_count_through_all_programs() -> None:
    modules = []
    for _ in range(2):
        hlo = Hlo(entry=2)
        inner = hlo.computation(1, "body")
        hlo.op(inner, 5, "x", "parameter")
        main = hlo.computation(2, "main")
        hlo.op(main, 5, "y", "parameter")  # ids count within their computation
        hlo.op(main, 6, "loop", "while", operands=[5, 5], calls=[1])
        modules.append(hlo)
    tables = read(*modules)
    assert tables["hlo_ops"]["name"].to_pylist() == ["x", "y", "loop"] * 2
    assert tables["hlo_ops"]["opcode"].to_pylist() == ["parameter", "parameter", "while"] * 2
    assert tables["hlo_ops"]["program"].to_pylist() == [0, 0, 0, 1, 1, 1]
    assert tables["hlo_ops"]["computation"].to_pylist() == [0, 1, 1, 2, 3, 3]
    assert tables["hlo_computations"]["entry"].to_pylist() == [False, True] * 2
    assert tables["hlo_operands"].to_pylist() == [{"op": op, "operand": op - 1} for op in (2, 2, 5, 5)]
    assert tables["hlo_calls"].to_pylist() == [{"op": 2, "computation": 0}, {"op": 5, "computation": 2}]


def test_entry_by_name_in_modules_without_its_id() -> None:
    hlo = Hlo(entry=0)
    hlo.module.entry_computation_name = "main"
    hlo.computation(1, "body")
    hlo.computation(2, "main")
    assert read(hlo)["hlo_computations"]["entry"].to_pylist() == [False, True]


def test_unpacked_ids_are_read() -> None:
    op = b"\x0a\x01a\x98\x02\x07" + b"\xa0\x02\x07" * 2 + b"\xb0\x02\x01"  # id 7, operands 7, 7, calls 1: a field each
    computation = b"\x12" + bytes([len(op)]) + op + b"\x28\x01"
    module = b"\x0a" + bytes([len(computation) + 2]) + b"\x1a" + bytes([len(computation)]) + computation
    tables = read_programs(programs(module))
    assert tables["hlo_operands"].to_pylist() == [{"op": 0, "operand": 0}] * 2
    assert tables["hlo_calls"].to_pylist() == [{"op": 0, "computation": 0}]


def test_the_line_is_the_innermost_of_the_users() -> None:
    hlo = Hlo()
    train = hlo.frame("/home/u/train.py", "loss", 12)
    model = hlo.frame("/home/u/model.py", "Model.__call__", 40, parent=train)
    in_jax = hlo.frame(JAX, "bind", 500, parent=model)
    in_stdlib = hlo.frame(STDLIB, "inner", 81, parent=in_jax)
    in_library = hlo.frame(LIBRARY, "update", 7, parent=train)
    frozen = hlo.frame("<frozen runpy>", "run", 3)
    main = hlo.computation(1)
    for number, (name, frame) in enumerate(
        {"own": model, "jax": in_jax, "deep": in_stdlib, "library": in_library, "foreign": frozen, "wrong": 99}.items()
    ):
        hlo.op(main, number, name, frame=frame)
    user = ("/home/u/model.py", 40, "Model.__call__")
    assert places(read(hlo)) == {
        "own": user,
        "jax": user,
        "deep": user,
        "library": (LIBRARY, 7, "update"),
        "foreign": ("<frozen runpy>", 3, "run"),
        "wrong": ("", 0, ""),
    }


def test_frames_that_are_their_own_parents_end() -> None:
    hlo = Hlo()
    first = hlo.frame(JAX, "a", 1, parent=2)
    hlo.frame(JAX, "b", 2, parent=1)
    hlo.op(hlo.computation(1), 1, "op", frame=first)
    assert places(read(hlo)) == {"op": (JAX, 1, "a")}


def test_older_modules_state_file_and_line_themselves() -> None:
    hlo = Hlo()
    frame = hlo.frame("/home/u/train.py", "f", 3)
    main = hlo.computation(1)
    hlo.op(main, 1, "stated", source_file="/home/u/old.py", source_line=9)
    hlo.op(main, 2, "framed", source_file="/home/u/old.py", source_line=9, frame=frame)
    assert places(read(hlo)) == {"stated": ("/home/u/old.py", 9, ""), "framed": ("/home/u/train.py", 3, "f")}


def test_a_fusion_without_a_line_takes_its_computations() -> None:
    hlo = Hlo(entry=9)
    root_line, first_line, third_line = (hlo.frame("t.py", "f", line) for line in (10, 20, 30))
    rooted = hlo.computation(1, root=3)
    hlo.op(rooted, 2, "a", frame=first_line, op_name="jit(f)/a")
    hlo.op(rooted, 3, "b", frame=root_line, op_name="jit(f)/b")
    bare_root = hlo.computation(2, root=3)
    hlo.op(bare_root, 1, "p", "parameter")
    hlo.op(bare_root, 2, "c", frame=third_line, op_name="jit(f)/c")
    hlo.op(bare_root, 3, "d")
    main = hlo.computation(9)
    hlo.op(main, 1, "fusion.1", "fusion", calls=[1])
    hlo.op(main, 2, "fusion.2", "fusion", calls=[2])
    hlo.op(main, 3, "fusion.3", "fusion", calls=[1], frame=third_line, op_name="own")
    hlo.op(main, 4, "sum", "reduce", calls=[1])  # what a reduction calls is not what it is
    outer = hlo.computation(10)
    hlo.op(outer, 1, "call.1", "call", calls=[9])
    tables = read(hlo)
    found = places(tables)
    assert [found[name][1] for name in ("fusion.1", "fusion.2", "fusion.3", "sum", "call.1")] == [10, 30, 30, 0, 30]
    op_names = dict(zip(tables["hlo_ops"]["name"].to_pylist(), tables["hlo_ops"]["op_name"].to_pylist(), strict=True))
    assert [op_names[name] for name in ("fusion.1", "fusion.2", "fusion.3", "sum")] == [
        "jit(f)/b",
        "jit(f)/c",
        "own",
        "",
    ]


@pytest.mark.parametrize(
    ("module", "frames", "expected"),
    [
        ("jit_step", [("t.py", "main", 9), ("t.py", "step", 5), ("t.py", "step", 4)], ("step", "t.py", 4)),
        ("jit_f", [("t.py", "main.<locals>.f", 5)], ("f", "t.py", 5)),
        ("jit__lambda_", [("t.py", "<lambda>", 5)], ("<lambda>", "t.py", 5)),
        ("jit__lambda", [("t.py", "<module>", 1), ("t.py", "main.<locals>.<lambda>", 6)], ("<lambda>", "t.py", 6)),
        ("pmap_f", [("t.py", "f", 5)], ("f", "t.py", 5)),
        # The outermost frame of the name is the traced one; an inner namesake in another file is not.
        ("jit_apply", [("t.py", "apply", 8), ("lib.py", "apply", 2)], ("apply", "t.py", 8)),
        ("jit_g", [("t.py", "f", 5)], ("g", None, None)),
        ("jit_g", [], ("g", None, None)),
        ("jit__lambda_", [], ("<lambda>", None, None)),
    ],
)
def test_traced_function(
    module: str, frames: list[tuple[str, str, int]], expected: tuple[str, str | None, int | None]
) -> None:
    hlo = Hlo(module)
    parent = 0
    for file, function, line in frames:
        parent = hlo.frame(file, function, line, parent)
    table = program_functions(programs(hlo.message.SerializeToString()))
    assert [tuple(row.values())[1:] for row in table.to_pylist()] == [expected]


def test_a_broken_program_costs_itself_alone() -> None:
    hlo = Hlo()
    hlo.op(hlo.computation(1), 1, "op", operands=[8])
    good = hlo.message.SerializeToString()
    tables = read_programs(programs(good, good[:-2], None, good), file="rank0.xplane.pb")
    assert tables["hlo_ops"]["program"].to_pylist() == [0, 3]
    assert tables["program_functions"]["program"].to_pylist() == [0, 3]
    assert tables["hlo_operands"].num_rows == 0
    rows = tables["diagnostics"].to_pylist()
    assert [(row["code"], row["count"], row["file"]) for row in rows] == [
        ("hlo_edge_without_end", 1, "rank0.xplane.pb"),
        ("hlo_not_decoded", 1, "rank0.xplane.pb"),
        ("hlo_edge_without_end", 1, "rank0.xplane.pb"),
    ]
    assert rows[1]["place"].startswith("program jit_f(11)")
    assert "byte" in rows[1]["place"]


def test_no_programs_no_rows() -> None:
    tables = read_programs(schema.empty("programs"))
    assert {name: table.num_rows for name, table in tables.items()} == dict.fromkeys(tables, 0)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damaged_modules_agree_with_protobuf(data: st.DataObject) -> None:
    hlo = Hlo("jit_é")
    frame = hlo.frame("t.py", "f", 3)
    for number in (1, 2):
        computation = hlo.computation(number, root=number)
        for op in (1, 2):
            made = hlo.op(computation, op, f"op.{op}", operands=[1, 2], calls=[1], op_name="name", frame=frame)
            made.shape.element_type, made.fusion_kind = 11, "kLoop"
            made.shape.dimensions.extend([3, 4])
            made.dimensions.extend([5, 6])
    whole = bytearray(hlo.message.SerializeToString())
    del whole[data.draw(st.integers(len(whole) // 2, len(whole)), "length") :]
    for at in data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=3), "flips"):
        whole[at] = data.draw(st.integers(0, 255), "byte")
    damaged = bytes(whole)
    tables = read_programs(programs(damaged))
    for table in tables.values():
        table.validate(full=True)
    message = HloProto()
    try:
        message.ParseFromString(damaged)
    except DecodeError:
        return  # it may refuse more: bad UTF-8, and faults in fields that we pass over
    ops = [op for computation in message.hlo_module.computations for op in computation.instructions]
    assert tables["hlo_ops"]["name"].to_pylist() == [op.name for op in ops]
    assert tables["hlo_ops"]["opcode"].to_pylist() == [op.opcode for op in ops]
    assert tables["hlo_computations"]["name"].to_pylist() == [c.name for c in message.hlo_module.computations]
    see = Instructions(tables)
    for row, op in enumerate(ops):
        assert see.values(row, "dimension") == list(op.dimensions)
        arrays = see.arrays(row)
        # Two shapes are two arrays to us, and merged into one by protobuf; no program has them.
        if op.HasField("shape") and op.shape.element_type != 13 and not op.shape.tuple_shapes and len(arrays) == 1:
            known = all(size >= 0 for size in op.shape.dimensions) and not any(op.shape.is_dynamic_dimension)
            assert arrays[0].dimensions == (tuple(op.shape.dimensions) if known else None)
    model = CostModel(see)
    for row in range(see.count):
        model.of(row)
