"""HLO modules to tables: instructions, computations, their edges, and the source line of each instruction.

The source line of an instruction is the innermost frame of its stack that is the user's. Not the user's are frames in
the packages jax and jaxlib, in the standard library, and pseudo-files such as ``<frozen runpy>``; JAX leaves most of
these out itself. A library that is built on JAX counts as the user's: its line is where the op was written. Where every
frame is foreign the innermost one stands; where there is no frame, the instruction's own source_file and source_line
(older modules). A fusion or call without any takes those of the computation it calls: the root's, else the first
instruction's that has one; the same holds for op_name.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from xprof_py import _native
from xprof_py.postprocess import schema
from xprof_py.postprocess.hlo.buffers import BUFFER_TABLES, buffer_columns, impossible_sizes
from xprof_py.postprocess.hlo.shapes import attribute_columns, shape_columns
from xprof_py.postprocess.readers.xspace import strings

_I32 = npt.NDArray[np.int32]
_Rows = npt.NDArray[np.integer[Any]]
_Mask = npt.NDArray[np.bool_]

HLO_TABLES = (
    "hlo_ops",
    "hlo_computations",
    "hlo_operands",
    "hlo_calls",
    "hlo_shapes",
    "hlo_attributes",
    "hlo_texts",
    "hlo_roots",
    "program_devices",
    "program_functions",
    *BUFFER_TABLES,
)

_FOREIGN_FILE = re.compile(r"^<|/(?:site|dist)-packages/jax(?:lib)?/|/lib/python3\.\d+/(?!(?:site|dist)-packages/)")
_MODULE_PREFIX = re.compile(r"^(?:jit|pjit|pmap|xmap)_")
_NOT_IN_MODULE_NAME = re.compile(r"[^\w.-]")
_TAKES_SOURCE_OF_CALLED = ("fusion", "call")


def read_programs(programs: pa.Table, *, file: str = "") -> dict[str, pa.Table]:
    """Read the HLO of every program.

    ``programs``: the table of that name; rows whose ``hlo`` is null are passed over. ``file`` is named in diagnostics.

    Returns the tables HLO_TABLES, ``program`` in them a row of ``programs``, and ``diagnostics``. A program whose HLO
    cannot be decoded costs itself alone: it has a row in ``diagnostics`` and none elsewhere.
    """
    parts: dict[str, list[dict[str, Any]]] = {name: [] for name in HLO_TABLES}
    diagnostics: list[dict[str, Any]] = []
    ops = computations = 0
    first = {"hlo_allocations": 0, "hlo_buffers": 0}
    for program, (name, program_id, hlo) in enumerate(
        zip(programs["name"], programs["program_id"], programs["hlo"], strict=True)
    ):
        if not hlo.is_valid:
            continue
        place = f"program {name.as_py()}({program_id.as_py()})"
        try:
            module = _Module(_native.decode_hlo(hlo.as_buffer()))
        except _native.DecodeError as error:
            where = f"{place}, {error.place}, byte {error.offset}" if error.place else f"{place}, byte {error.offset}"
            diagnostics.append(_diagnostic("hlo_not_decoded", file, where, 1, error.reason))
            continue
        for table, columns in module.tables(program, ops, computations).items():
            parts[table].append(columns)
        places = buffer_columns(module.columns, program, first_op=ops, first_computation=computations, first=first)
        impossible = impossible_sizes(module.columns)
        if impossible:
            message = "sizes in the buffer assignment that cannot be: where this program keeps its values is not known"
            diagnostics.append(_diagnostic("hlo_buffer_sizes", file, place, impossible, message))
            places = {table: {name: column[:0] for name, column in own.items()} for table, own in places.items()}
        for table, columns in places.items():
            parts[table].append(columns)
        first = {table: count + len(places[table]["program"]) for table, count in first.items()}
        for code, count, message in module.complaints():
            diagnostics.append(_diagnostic(code, file, place, count, message))
        ops += module.op_count
        computations += module.computation_count
    return {
        **{name: _joined(name, columns) for name, columns in parts.items()},
        "diagnostics": pa.Table.from_pylist(diagnostics, schema=schema.TABLES["diagnostics"]),
    }


def program_functions(programs: pa.Table) -> pa.Table:
    """The table program_functions alone: which Python function, file and first line each program was traced from."""
    return read_programs(programs)["program_functions"]


def _diagnostic(code: str, file: str, place: str, count: int, message: str) -> dict[str, Any]:
    return {
        "severity": "warning",
        "code": code,
        "file": file,
        "place": place,
        "count": count,
        "message": message,
    }


def _joined(name: str, parts: list[dict[str, Any]]) -> pa.Table:
    if not parts:
        return schema.empty(name)
    columns = {}
    for field in schema.TABLES[name]:
        chunks = [part[field.name] for part in parts]
        if isinstance(chunks[0], np.ndarray):
            columns[field.name] = pa.array(np.concatenate(chunks))
        else:
            chunked = pa.chunked_array(chunks)
            if pa.types.is_dictionary(field.type):
                chunked = chunked.unify_dictionaries()
            columns[field.name] = chunked.combine_chunks()
    return schema.table(name, columns)


class _Module:
    """One decoded module; rows of its tables count from the module's first."""

    def __init__(self, columns: dict[str, Any]) -> None:
        self.columns = columns
        self.op_count = len(columns["instructions"]["id"])
        self.computation_count = len(columns["computations"]["id"])
        self.name: str = strings(columns["name"])[0].as_py()
        self.frames = _Frames(columns)

    def column(self, table: str, name: str) -> npt.NDArray[Any]:
        return np.asarray(self.columns[table][name])

    def complaints(self) -> list[tuple[str, int, str]]:
        """What is not in order: (code, count, message)."""
        edges = (("operands", "operand"), ("calls", "computation"))
        lost = sum(int(np.count_nonzero(self.column(*edge) < 0)) for edge in edges)
        repaired = self.columns["repaired_strings"]
        complaints = []
        if lost:
            message = "operands or called computations that are not in the module"
            complaints.append(("hlo_edge_without_end", lost, message))
        if repaired:
            complaints.append(("not_utf8", repaired, "strings that are not UTF-8; the bad bytes are replaced"))
        return complaints

    def tables(self, program: int, first_op: int, first_computation: int) -> dict[str, dict[str, Any]]:
        """The columns of HLO_TABLES, with rows counted from ``first_op`` and ``first_computation``."""
        ops, operands, calls = self.columns["instructions"], self.columns["operands"], self.columns["calls"]
        known_operand = self.column("operands", "operand") >= 0
        known_call = self.column("calls", "computation") >= 0
        function, file, line = self.frames.traced_function(self.name)
        names = strings(self.columns["instruction_names"])
        opcodes = strings(self.columns["opcodes"])
        numbers, texts = attribute_columns(self.columns, first_op)
        root = self.column("computations", "root")
        rooted = np.flatnonzero(root >= 0)
        return {
            "hlo_ops": {
                "program": np.full(self.op_count, program, np.int32),
                "name": pa.DictionaryArray.from_arrays(pa.array(np.arange(self.op_count, dtype=np.int32)), names),
                "opcode": pa.DictionaryArray.from_arrays(pa.array(np.asarray(ops["opcode"])), opcodes),
                "computation": np.asarray(ops["computation"]) + np.int32(first_computation),
                **self.sources(),
            },
            "hlo_computations": {
                "program": np.full(self.computation_count, program, np.int32),
                "name": strings(self.columns["computation_names"]),
                "entry": self.column("computations", "entry") != 0,
            },
            "hlo_operands": {
                "op": np.asarray(operands["op"])[known_operand] + np.int32(first_op),
                "operand": np.asarray(operands["operand"])[known_operand] + np.int32(first_op),
            },
            "hlo_calls": {
                "op": np.asarray(calls["op"])[known_call] + np.int32(first_op),
                "computation": np.asarray(calls["computation"])[known_call] + np.int32(first_computation),
            },
            "hlo_shapes": shape_columns(self.columns, first_op),
            "hlo_attributes": numbers,
            "hlo_texts": texts,
            "hlo_roots": {
                "computation": (rooted + first_computation).astype(np.int32),
                "op": root[rooted] + np.int32(first_op),
            },
            "program_devices": {
                "program": np.full(1, program, np.int32),
                "replica_count": pa.array([self.columns["replica_count"] or None], pa.int64()),
                "partition_count": pa.array([self.columns["partition_count"] or None], pa.int64()),
            },
            "program_functions": {
                "program": np.full(1, program, np.int32),
                "function": pa.array([function], pa.string()),
                "file": pa.array([file], pa.string()),
                "source_line": pa.array([line], pa.int32()),
            },
        }

    def sources(self) -> dict[str, Any]:
        """op_name, file, source_line and function of every instruction, "" and 0 where nothing says them."""
        frame = self.frames.user_frame(self.column("instructions", "stack_frame"))
        file, line, function = self.frames.described(frame)
        # The instruction's own source_file is a further dictionary, behind the frames' file names.
        own_files = strings(self.columns["source_files"])
        own_file = self.column("instructions", "source_file")
        frame_files = len(self.frames.file_names)
        lengths = np.asarray(pc.binary_length(own_files))
        stated = (file < 0) & (lengths[own_file] > 0)
        file = np.where(stated, own_file + frame_files, file)
        line = np.where(stated, self.column("instructions", "source_line"), line)
        source = self.taken_from_called(file >= 0)
        file, line, function = file[source], line[source], function[source]
        op_names = strings(self.columns["op_names"])
        has_name = np.asarray(pc.binary_length(op_names)) > 0
        return {
            "op_name": op_names.take(pa.array(self.taken_from_called(has_name))),
            "file": _dictionary(file, pa.concat_arrays([self.frames.file_names, own_files])),
            "source_line": np.where(file >= 0, line, 0).astype(np.int32),
            "function": _dictionary(np.where(file >= 0, function, -1), self.frames.function_names),
        }

    def taken_from_called(self, has: _Mask) -> _Rows:
        """For each instruction the one to take a fact from: itself, or for fusions and calls without, one they call."""
        source = np.arange(self.op_count)
        caller = self.column("calls", "op")
        called = self.column("calls", "computation")
        opcodes = strings(self.columns["opcodes"]).to_pylist()
        taking_opcodes = [opcodes.index(opcode) for opcode in _TAKES_SOURCE_OF_CALLED if opcode in opcodes]
        taking = np.isin(self.column("instructions", "opcode"), taking_opcodes)
        edges = np.flatnonzero((called >= 0) & taking[caller] & ~has[caller])
        computation = self.column("instructions", "computation")
        root = self.column("computations", "root")
        has = has.copy()
        # A call may call a fusion: repeat until nothing changes, callees first or not.
        while edges.size:
            spoken = np.full(self.computation_count, -1, np.int64)
            with_fact = np.flatnonzero(has)[::-1]
            spoken[computation[with_fact]] = with_fact  # the first instruction of each wins
            rooted = np.flatnonzero((root >= 0) & has[root])
            spoken[rooted] = root[rooted]
            found = edges[spoken[called[edges]] >= 0]
            if not found.size:
                break
            first = found[np.unique(caller[found], return_index=True)[1]]
            source[caller[first]] = source[spoken[called[first]]]
            has[caller[first]] = True
            edges = edges[~has[caller[edges]]]
        return source


def _dictionary(index: _Rows, names: pa.StringArray) -> pa.DictionaryArray:
    """A dictionary column; index -1 is ""."""
    with_empty = pa.concat_arrays([pa.array([""], pa.string()), names])
    return pa.DictionaryArray.from_arrays(pa.array((index + 1).astype(np.int32)), with_empty)


class _Frames:
    """A module's stack frames, 1-based as in the file; row 0 stands for "no frame"."""

    def __init__(self, columns: dict[str, Any]) -> None:
        self.file_names = strings(columns["file_names"])
        self.function_names = strings(columns["function_names"])
        location = np.concatenate([[0], np.asarray(columns["frames"]["location"])])
        parent = np.concatenate([[0], np.asarray(columns["frames"]["parent"])])
        places = {name: np.concatenate([[0], np.asarray(column)]) for name, column in columns["locations"].items()}
        location[(location < 0) | (location >= places["line"].size)] = 0
        parent[(parent < 0) | (parent >= parent.size)] = 0
        self.parent = parent
        self.file = self._index(places["file"][location], len(self.file_names))
        self.function = self._index(places["function"][location], len(self.function_names))
        self.line = places["line"][location]
        foreign_file = np.array([bool(_FOREIGN_FILE.search(name)) for name in self.file_names.to_pylist()] + [False])
        self.foreign = foreign_file[self.file]  # file -1 is the last entry

    @staticmethod
    def _index(one_based: _Rows, count: int) -> _Rows:
        return np.where((one_based >= 1) & (one_based <= count), one_based - 1, -1)

    def user_frame(self, frame: _Rows) -> _Rows:
        """The innermost frame of the user's on each stack, the stack's own innermost one where there is none."""
        frame = np.where((frame >= 0) & (frame < self.parent.size), frame, 0)
        walked = frame.copy()
        # Frames that are their own ancestors cannot be walked; a stack has fewer frames than the table.
        for _ in range(self.parent.size):
            moving = self.foreign[walked] & (walked > 0)
            if not moving.any():
                break
            walked[moving] = self.parent[walked[moving]]
        return np.where((walked > 0) & ~self.foreign[walked], walked, frame)

    def described(self, frame: _Rows) -> tuple[_Rows, _Rows, _Rows]:
        """File (-1 = none), line and function (-1 = none) of frames."""
        return self.file[frame], self.line[frame], self.function[frame]

    def depth(self) -> _Rows:
        """How many frames enclose each frame."""
        depth = np.zeros(self.parent.size, np.int64)
        walked = self.parent.copy()
        for _ in range(self.parent.size):
            if not walked.any():
                break
            depth += walked > 0
            walked = self.parent[walked]
        return depth

    def traced_function(self, module_name: str) -> tuple[str, str | None, int | None]:
        """The traced function's name, file and least line: of the outermost frame that has its name."""
        wanted = _MODULE_PREFIX.sub("", module_name)
        names = self.function_names.to_pylist()
        matching = [
            number
            for number, name in enumerate(names)
            if _NOT_IN_MODULE_NAME.sub("_", name.rsplit(".", 1)[-1]).rstrip("_") == wanted.rstrip("_")
        ]
        called = "<lambda>" if wanted.strip("_") == "lambda" else wanted
        frames = np.flatnonzero(np.isin(self.function, matching) & (self.file >= 0))
        if not frames.size:
            return called, None, None
        outermost = frames[np.argmin(self.depth()[frames])]
        same = frames[(self.function[frames] == self.function[outermost]) & (self.file[frames] == self.file[outermost])]
        name = names[self.function[outermost]].rsplit(".", 1)[-1]
        return name, self.file_names[self.file[outermost]].as_py(), int(self.line[same].min())
