"""XSpaces with planes of TPUs and GPUs, made by hand: every time in them is a number of picoseconds in the test.

A space has the session's plane, so that times count from its start; ``Planes.line`` adds lines to planes by name, and
``event`` adds an event with stats: int, float, str and bytes become stats of these kinds, ``kind_stats`` those of the
event's metadata (what a TPU's profiler says once for an op).
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from xprof_py.postprocess.join import join_profile
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.readers.xspace import read_xspace
from xspace_schema import HloProto, XSpace

START_NS = 1_796_010_971_000_000_000


class Planes:
    """An XSpace of a session of ``end_ps`` picoseconds (a multiple of 1000)."""

    def __init__(self, end_ps: int) -> None:
        self.space = XSpace(hostnames=["host0"])
        self._ids: dict[tuple[str, str], dict[Any, int]] = {}
        self._planes: dict[str, Any] = {}
        self.plane("Task Environment", profile_start_time=START_NS, profile_stop_time=START_NS + end_ps // 1000)

    def plane(self, name: str, **stats: Any) -> Any:
        """The plane of that name, with stats of its own."""
        if name not in self._planes:
            self._planes[name] = self.space.planes.add(name=name)
        self._stats(name, self._planes[name], stats)
        return self._planes[name]

    def line(self, plane: str, name: str, line_id: int = 0) -> Line:
        """A new line."""
        return Line(self, plane, self.plane(plane).lines.add(id=line_id, name=name))

    def program(self, program_id: int, name: str, entry: dict[str, str], body: dict[str, str] | None = None) -> None:
        """A compiled program: name -> opcode of its instructions; ``body`` is what its `while`, `call`, ... calls."""
        hlo = HloProto()
        module = hlo.hlo_module
        module.name, module.id, module.entry_computation_id = name, program_id, 1
        for number, computation in enumerate((entry, body or {}), 1):
            if not computation:
                continue
            made = module.computations.add(name=f"computation.{number}", id=number)
            for row, (instruction, opcode) in enumerate(computation.items()):
                added = made.instructions.add(name=instruction, opcode=opcode, id=number * 100 + row)
                added.shape.element_type = 11
                if opcode in ("while", "call", "conditional") and body:
                    added.called_computation_ids.append(2)
            made.root_id = number * 100 + len(computation) - 1
        metadata = self.plane("/host:metadata")
        described = metadata.event_metadata[len(metadata.event_metadata) + 1]
        described.name = f"{name}({program_id})"
        self._stats("/host:metadata", described, {"Hlo Proto": hlo.SerializeToString()})

    def event_id(self, plane: str, name: str, kind_stats: dict[str, Any]) -> int:
        """The event metadata of a name with these stats."""
        ids = self._ids.setdefault((plane, "event"), {})
        key = (name, tuple(sorted(kind_stats.items())))
        if key not in ids:
            ids[key] = len(ids) + 1
            described = self._planes[plane].event_metadata[ids[key]]
            described.name = name
            self._stats(plane, described, kind_stats)
        return ids[key]

    def _stats(self, plane: str, owner: Any, stats: dict[str, Any]) -> None:
        ids = self._ids.setdefault((plane, "stat"), {})
        for key, value in stats.items():
            if key not in ids:
                ids[key] = len(ids) + 1
                self._planes[plane].stat_metadata[ids[key]].name = key
            stat = owner.stats.add(metadata_id=ids[key])
            if isinstance(value, bytes):
                stat.bytes_value = value
            elif isinstance(value, str):
                stat.str_value = value
            elif isinstance(value, float):
                stat.double_value = value
            elif value >= 2**63:
                stat.uint64_value = value
            else:
                stat.int64_value = value

    def shuffled(self, seed: int) -> Planes:
        """The same with planes, lines and events in another order."""
        order = random.Random(seed)
        other = Planes.__new__(Planes)
        other.space = XSpace()
        other.space.CopyFrom(self.space)
        for repeated in (other.space.planes, *(p.lines for p in other.space.planes)):
            _shuffle(repeated, order)
        for plane in other.space.planes:
            for line in plane.lines:
                _shuffle(line.events, order)
        return other

    def joined(self, folder: Path) -> Profile:
        """What reading and joining make of it."""
        path = folder / "host0.xplane.pb"
        path.write_bytes(self.space.SerializeToString())
        return join_profile(read_xspace(path))


class Line:
    """A line of a plane that events are added to."""

    def __init__(self, planes: Planes, plane: str, line: Any) -> None:
        self._planes, self._plane, self._line = planes, plane, line

    def event(
        self, name: str, start_ps: int, end_ps: int, kind_stats: dict[str, Any] | None = None, **stats: Any
    ) -> Line:
        """Add an event; returns the line."""
        number = self._planes.event_id(self._plane, name, kind_stats or {})
        event = self._line.events.add(metadata_id=number, offset_ps=start_ps, duration_ps=end_ps - start_ps)
        self._planes._stats(self._plane, event, stats)
        return self


def _shuffle(repeated: Any, order: random.Random) -> None:
    copies = []
    for message in repeated:
        copy = type(message)()
        copy.CopyFrom(message)
        copies.append(copy)
    order.shuffle(copies)
    del repeated[:]
    repeated.extend(copies)
