"""A recorded XSpace as another compile of the same program gives it: other instruction names, other program ids."""

from __future__ import annotations

import re
from typing import Any

from xspace_schema import HloProto, XSpace

MOVED = 7000
"""Added to every program id."""


def rename_ops(data: bytes) -> bytes:
    """``data``: a serialized XSpace of a JAX CPU capture. No instruction keeps its name, and none says its opcode."""
    space = XSpace.FromString(data)
    new_names = _renamed_programs(space)
    for plane in space.planes:
        keys = {key: entry.name for key, entry in plane.stat_metadata.items()}
        ops = set()
        for line in plane.lines:
            for event in line.events:
                for stat in event.stats:
                    if keys[stat.metadata_id] == "hlo_op":
                        ops.add(event.metadata_id)
                        if stat.HasField("str_value"):
                            stat.str_value = new_names[stat.str_value]
                    _move_program_id(stat, keys)
        texts = {
            stat.ref_value
            for line in plane.lines
            for event in line.events
            for stat in event.stats
            if keys[stat.metadata_id] == "hlo_op" and stat.HasField("ref_value")
        }
        for text in texts:
            plane.stat_metadata[text].name = new_names[plane.stat_metadata[text].name]
        for key, entry in plane.event_metadata.items():
            end, name = re.match(r"(end: )?(.*)", entry.name, re.DOTALL).groups("")
            if key in ops or end:
                entry.name = end + new_names.get(name, name)
    renamed: bytes = space.SerializeToString()
    return renamed


def _renamed_programs(space: Any) -> dict[str, str]:
    """Old name -> new name of every instruction; the HLO and the ids of the programs are changed in place."""
    new_names: dict[str, str] = {}
    for plane in space.planes:
        keys = {key: entry.name for key, entry in plane.stat_metadata.items()}
        for entry in plane.event_metadata.values():
            for stat in entry.stats:
                _move_program_id(stat, keys)
                if keys[stat.metadata_id] == "Hlo Proto":
                    proto = HloProto.FromString(stat.bytes_value)
                    for computation in proto.hlo_module.computations:
                        for instruction in computation.instructions:
                            # The last instruction of the first program becomes the first of another order.
                            new = new_names.setdefault(instruction.name, f"i{9999 - len(new_names)}.{len(new_names)}")
                            instruction.name = new
                    proto.hlo_module.id += MOVED
                    stat.bytes_value = proto.SerializeToString()
            entry.name = re.sub(r"\((\d+)\)$", lambda found: f"({int(found[1]) + MOVED})", entry.name)
    return new_names


def _move_program_id(stat: Any, keys: dict[int, str]) -> None:
    if keys[stat.metadata_id] == "program_id":
        field = stat.WhichOneof("value") if stat.DESCRIPTOR.oneofs_by_name.get("value") else None
        for name in [field] if field else ("uint64_value", "int64_value"):
            if stat.HasField(name):
                setattr(stat, name, getattr(stat, name) + MOVED)
