"""Does one compiled program hand its result on to another? As far as the shapes of results and parameters say.

An optimizer's update returns the parameters that the next gradient takes; an evaluation returns a few figures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from xprof_py.postprocess.hlo.shapes import Array, Instructions
from xprof_py.postprocess.profile import Profile

_MUCH = 0.5
"""Part of the taker's own result that must fit: an update gives all of the state back, a metric next to nothing."""


@dataclass(frozen=True)
class _Interface:
    """Arrays (type, dimensions, bytes of one) that a program takes and returns, each with how many of them."""

    takes: Counter[tuple[str, tuple[int, ...] | None, int]]
    returns: Counter[tuple[str, tuple[int, ...] | None, int]]


class HandOver:
    """The interfaces of a profile's programs."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile

    def hands_on(self, giver: int, takers: Iterable[int]) -> bool | None:
        """Whether the result of program ``giver`` (row of programs) is state for one of ``takers``.

        That is: of its result, arrays of the shapes of a taker's parameters make up half of the taker's own result in
        bytes. None where a program's shapes are not known.
        """
        interfaces = [self._interfaces.get(program) for program in (giver, *takers)]
        if None in interfaces or len(interfaces) < 2:
            return None
        known = [interface for interface in interfaces if interface is not None]
        returned = known[0].returns
        return any(_bytes(returned & taker.takes) >= _MUCH * _bytes(taker.returns) > 0 for taker in known[1:])

    @cached_property
    def _interfaces(self) -> dict[int, _Interface]:
        if not self._profile["hlo_shapes"].num_rows:
            return {}
        instructions = Instructions(self._profile)
        out = {}
        for program, entry in instructions.entries.items():
            root = instructions.root(entry)
            if root is None:
                continue
            takes: list[Array] = []
            for op in instructions.members(entry):
                if instructions.opcode(op) == "parameter":
                    takes += instructions.arrays(op)
            out[program] = _Interface(_counted(takes), _counted(instructions.arrays(root)))
        return out


def _counted(arrays: list[Array]) -> Counter[tuple[str, tuple[int, ...] | None, int]]:
    return Counter((array.type, array.dimensions, array.bytes or 0) for array in arrays)


def _bytes(arrays: Counter[tuple[str, tuple[int, ...] | None, int]]) -> int:
    return sum(key[2] * count for key, count in arrays.items())
