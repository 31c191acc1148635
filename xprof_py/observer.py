"""How long steps take before, inside and after a recording: what watching costs them. Pure: times in, lists out."""

from __future__ import annotations

from collections import deque
from typing import Any, Literal

KEPT = 64
"""Steps kept of each stage: the last ones before and inside the recording, the first ones after it."""
_NAMES = 16

Stage = Literal["before", "inside", "after"]


class StepTimes:
    """From the start of a step to the start of the next one of its name and thread, by stage. At most KEPT of each.

    Two steps with a step of another name between them, or in two stages, are no pair: an evaluation is no slow step.
    """

    def __init__(self) -> None:
        self._last: dict[int, tuple[Stage | None, str, int]] = {}
        self._kept: dict[tuple[Stage, str], deque[int]] = {}

    def entered(self, stage: Stage | None, thread: int, name: str, now_ns: int) -> None:
        """Thread ``thread`` enters an outermost step at ``now_ns``; ``stage`` None: while files are being written."""
        last = self._last.get(thread)
        self._last[thread] = (stage, name, now_ns)
        if stage is None or last is None or last[:2] != (stage, name):
            return
        if (stage, name) not in self._kept and len(self._kept) >= _NAMES:
            return
        kept = self._kept.setdefault((stage, name), deque(maxlen=KEPT))
        if stage != "after" or len(kept) < KEPT:
            kept.append(now_ns - last[2])

    def begins(self, stage: Stage, thread: int, name: str, now_ns: int) -> None:
        """The stage begins inside a step that was entered: what its beginning took belongs to no step."""
        self._last[thread] = (stage, name, now_ns)

    def is_full(self, name: str) -> bool:
        """Whether as many steps of ``name`` as are kept came after the recording."""
        return len(self._kept.get(("after", name), ())) >= KEPT

    def document(self, name: str) -> dict[str, Any]:
        """What the run file says of steps called ``name``: their times in ns, in order, by stage."""
        stages: tuple[Stage, ...] = ("before", "inside", "after")
        return {"name": name, **{f"{stage}_ns": list(self._kept.get((stage, name), ())) for stage in stages}}
