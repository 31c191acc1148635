"""Which functions were compiled again, in which steps, at what cost, and which of their arguments had changed?

A recompile is a compile of a program in the capture where an earlier program of the same module name and source
location exists (from before the capture too, if the profile holds it). One row each.

A compile belongs to the program of the first run that was launched after it and before the next compile of that name;
where no run was joined, the last n programs of a name are those of its n compiles, in order of program id. `match`
says which: launch, order, or none.

The program is compared with an earlier one: the latest with the same arguments, else of the latest MOST_COMPARED that
which differs in the fewest arguments, the later of equals. `kind`:
  arguments      names, dtypes or shapes of arguments differ: `cause` lists them, null where an argument is not there
  same_arguments no argument differs, the program does: a static argument, a closure or a weak type
  same_program   the program is the same, byte for byte: a weak type, or jit was called on a new function object
  unknown        no program could be matched, or its HLO cannot be read

`total_ps`: the union of the tracing, lowering and compile intervals of the function since its last compile ended (at
most since the step began); `compile_ps`: the compile alone. An argument that a program does not use is not in it, so a
change of an unused one shows as same_program.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from xprof_py.postprocess.hlo.signature import Argument, Signature, read_signature
from xprof_py.postprocess.join import host_names, intervals
from xprof_py.postprocess.join.columns import Int64, dictionary, integers
from xprof_py.postprocess.profile import Profile

MOST_COMPARED = 16

CHANGE = pa.struct([("argument", pa.string()), ("was", pa.string()), ("is", pa.string())])
_SCHEMA = pa.schema(
    [
        ("host", pa.string()),
        ("function", pa.string()),
        ("source", pa.string()),
        ("step_name", pa.string()),
        ("step_number", pa.int64()),
        ("phase", pa.string()),
        ("start_ps", pa.int64()),
        ("total_ps", pa.int64()),
        ("compile_ps", pa.int64()),
        ("kind", pa.string()),
        ("cause", pa.list_(CHANGE)),
        ("result_was", pa.string()),
        ("result_is", pa.string()),
        ("program_id", pa.int64()),
        ("compared_with", pa.int64()),
        ("match", pa.string()),
    ]
)


def partial(profile: Profile) -> pa.Table:
    """One row per recompile of one joined profile; step columns are null outside steps, programs where unknown."""
    compiles = profile["compiles"].to_pylist()
    finished = [row for row in range(len(compiles)) if compiles[row]["stage"] == "compile"]
    if not finished:
        return _SCHEMA.empty_table()
    programs = _Programs(profile)
    key_of = [host_names.module_key(compiled["function"]) for compiled in compiles]
    by_key: dict[str, list[int]] = defaultdict(list)
    stages: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row, key in enumerate(key_of):
        stages[key].append(compiles[row])
        if compiles[row]["stage"] == "compile":
            by_key[key].append(row)
    matched: dict[int, tuple[int, str]] = {}
    bills: dict[int, dict[str, int]] = {}
    for key, rows in by_key.items():
        ends = [compiles[row]["start_ps"] + compiles[row]["duration_ps"] for row in rows]
        matched.update(zip(rows, programs.of_compiles(key, ends), strict=True))
    steps = profile["steps"].select(["name", "number", "phase", "start_ps"]).to_pylist()
    for key, rows in by_key.items():
        bills.update(_bills(stages[key], rows, compiles, steps))
    programs.remember_all_but({program for program, _ in matched.values()})
    seen: set[str] = set()
    out = []
    for row in finished:
        key = key_of[row]
        program, match = matched[row]
        if program >= 0:
            again = programs.has_predecessor(program)
        else:
            # Without its program a compile is a recompile where the name was compiled or known before.
            again = key in seen or programs.known_before(key, len(by_key[key]))
        compared = programs.compare(program)
        programs.remember(program)
        seen.add(key)
        if not again:
            continue
        step = steps[compiles[row]["step"]] if compiles[row]["step"] is not None else {}
        out.append(
            {
                "host": profile.host,
                **programs.named(program, compiles[row]["function"]),
                "step_name": step.get("name"),
                "step_number": step.get("number"),
                "phase": step.get("phase"),
                "start_ps": compiles[row]["start_ps"],
                **bills[row],
                **compared,
                "match": match,
            }
        )
    return pa.Table.from_pylist(out, schema=_SCHEMA)


def merge(a: pa.Table, b: pa.Table | None) -> pa.Table:
    """Rows of both: every compile is its host's own."""
    return a if b is None else pa.concat_tables([a, b])


def finish(merged: pa.Table) -> pa.Table:
    """The same rows, by host and time."""
    return merged.sort_by([("host", "ascending"), ("start_ps", "ascending"), ("function", "ascending")])


def _bills(
    stages: list[dict[str, Any]], rows: list[int], compiles: list[dict[str, Any]], steps: list[dict[str, Any]]
) -> dict[int, dict[str, int]]:
    """total_ps and compile_ps of the compiles ``rows``, all of one function, whose stages of every kind are given."""
    starts = np.array([stage["start_ps"] for stage in stages], np.int64)
    ends = starts + np.array([stage["duration_ps"] for stage in stages], np.int64)
    out = {}
    last_end = -1
    for row in rows:
        mine = compiles[row]
        end = mine["start_ps"] + mine["duration_ps"]
        begun = steps[mine["step"]]["start_ps"] if mine["step"] is not None else last_end
        since = max(last_end, begun)
        chosen = (ends > since) & (ends <= end)
        covered = intervals.union(np.maximum(starts[chosen], since), ends[chosen])
        out[row] = {"total_ps": int((covered[1] - covered[0]).sum()), "compile_ps": mine["duration_ps"]}
        last_end = max(last_end, end)
    return out


@dataclass(frozen=True)
class _Identity:
    """Programs of one identity are compiles of one function: module name and source location."""

    name: str
    function: str
    file: str | None
    line: int | None


@dataclass
class _Before:
    """The programs of one identity so far, in order; their signatures are read when one is to be compared."""

    programs: list[int] = field(default_factory=list)
    readable: list[tuple[int, Signature]] = field(default_factory=list)
    by_arguments: dict[tuple[Argument, ...], tuple[int, Signature]] = field(default_factory=dict)
    done: int = 0

    def read(self, signature: Callable[[int], Signature | None]) -> None:
        for program in self.programs[self.done :]:
            found = signature(program)
            if found is not None:
                self.readable.append((program, found))
                self.by_arguments[found.arguments] = (program, found)
        self.done = len(self.programs)


class _Programs:
    """The programs of one profile: whose they are, in which order they came, and what they take."""

    def __init__(self, profile: Profile) -> None:
        table = profile["programs"]
        self.ids = table["program_id"].to_pylist()
        self._hlo = table["hlo"]
        names = table["name"].to_pylist()
        self.identity = [_Identity(name, name, None, None) for name in names]
        for row in profile["program_functions"].to_pylist():
            at = row["program"]
            self.identity[at] = _Identity(names[at], row["function"], row["file"], row["source_line"])
        self._by_key: dict[str, list[int]] = defaultdict(list)
        for program in sorted(range(len(names)), key=self.ids.__getitem__):
            self._by_key[host_names.module_key(names[program])].append(program)
        self._launched = _first_launches(profile)
        self._launch_start = integers(profile["launches"], "start_ps")
        codes, launched = dictionary(profile["launches"], "name")
        self._codes_of_key: dict[str, list[int]] = defaultdict(list)
        for code, name in enumerate(launched):
            self._codes_of_key[host_names.module_key(name)].append(code)
        self._launch_code = codes
        self._before: dict[_Identity, _Before] = defaultdict(_Before)
        self.signature = cache(self._read)

    def of_compiles(self, key: str, ends_ps: list[int]) -> list[tuple[int, str]]:
        """(program or -1, match) of the compiles of a key, which ended at these times, in order."""
        programs = self._by_key[key]
        if not key or not programs:
            return [(-1, "none")] * len(ends_ps)
        launches = np.flatnonzero(np.isin(self._launch_code, self._codes_of_key[key]))
        starts = self._launch_start[launches]
        by_launch = []
        for end, until in zip(ends_ps, [*ends_ps[1:], None], strict=True):
            at = int(np.searchsorted(starts, end))
            inside = at < len(starts) and (until is None or starts[at] < until)
            by_launch.append(self._launched.get(int(launches[at]), -1) if inside else -1)
        found = set(by_launch)
        last = programs[-len(ends_ps) :] if len(programs) >= len(ends_ps) else [-1] * len(ends_ps)
        out = []
        for launched, ordered in zip(by_launch, last, strict=True):
            if launched >= 0:
                out.append((launched, "launch"))
            else:
                out.append((ordered, "order") if ordered >= 0 and ordered not in found else (-1, "none"))
        return out

    def known_before(self, key: str, compiles: int) -> bool:
        """Whether the profile holds more programs of a key than were compiled in it."""
        return len(self._by_key[key]) > compiles

    def remember_all_but(self, compiled: set[int]) -> None:
        """Programs that were not compiled in the capture are from before it."""
        for program in sorted(set(range(len(self.ids))) - compiled, key=self.ids.__getitem__):
            self.remember(program)

    def remember(self, program: int) -> None:
        """From now on later programs of its identity are compared with this one."""
        if program >= 0:
            self._before[self.identity[program]].programs.append(program)

    def has_predecessor(self, program: int) -> bool:
        """Whether a program of its identity is remembered."""
        return bool(self._before[self.identity[program]].programs)

    def named(self, program: int, compiled: str) -> dict[str, str]:
        """function and source of a compile: its own name where it has one, else the program's."""
        if program < 0:
            return {"function": compiled, "source": ""}
        identity = self.identity[program]
        source = f"{identity.file}:{identity.line}" if identity.file else ""
        return {"function": compiled or identity.function, "source": source}

    def compare(self, program: int) -> dict[str, Any]:
        """kind, cause and programs of one recompile, against those remembered."""
        unknown: dict[str, Any] = {
            "kind": "unknown",
            "cause": [],
            "result_was": None,
            "result_is": None,
            "program_id": self.ids[program] if program >= 0 else None,
            "compared_with": None,
        }
        now = self.signature(program) if program >= 0 else None
        if now is None:
            return unknown
        before = self._before[self.identity[program]]
        before.read(self.signature)
        alike = before.by_arguments.get(now.arguments)
        candidates = before.readable[-MOST_COMPARED:] if alike is None else [alike]
        differing = [(other, was, _changes(was, now)) for other, was in candidates]
        if not differing:
            return unknown
        closest, was, changes = min(reversed(differing), key=lambda found: len(found[2]))
        kind = "arguments" if changes else "same_program" if was.digest == now.digest else "same_arguments"
        return {
            **unknown,
            "kind": kind,
            "cause": changes,
            "result_was": was.result,
            "result_is": now.result,
            "compared_with": self.ids[closest],
        }

    def _read(self, program: int) -> Signature | None:
        hlo = self._hlo[program]
        try:
            return read_signature(hlo.as_buffer()) if hlo.is_valid else None
        except ValueError:
            # read_programs has said so already; the recompile is of kind unknown.
            return None


def _first_launches(profile: Profile) -> dict[int | None, int]:
    """launch -> program, for the first launch of each program that the capture shows."""
    runs = profile["runs"]
    program, launch = integers(runs, "program"), integers(runs, "launch")
    known: Int64 = np.flatnonzero((program >= 0) & (launch >= 0))
    first: dict[int, int] = {}
    for at, run_program in zip(launch[known].tolist(), program[known].tolist(), strict=True):
        first[run_program] = min(at, first.get(run_program, at))
    return {at: run_program for run_program, at in first.items()}


def _changes(was: Signature, now: Signature) -> list[dict[str, str | None]]:
    """Arguments that differ, by name: those of the new program in their order, then those that are gone."""
    old = {argument.name: argument.type for argument in was.arguments}
    new = {argument.name: argument.type for argument in now.arguments}
    names = [*new, *(name for name in old if name not in new)]
    return [
        {"argument": name, "was": old.get(name), "is": new.get(name)}
        for name in names
        if old.get(name) != new.get(name)
    ]
