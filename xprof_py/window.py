"""When a capture records: a pure machine, steps in, actions out. No clock, no file, no thread of its own."""

from __future__ import annotations

from enum import Enum


class Action(Enum):
    """What the capture has to do now."""

    START = "start"
    STOP = "stop"


class Phase(Enum):
    """Where the capture stands."""

    IDLE = "idle"
    ARMED = "armed"
    RECORDING = "recording"
    OVER = "over"


class CaptureWindow:
    """The window of a capture: the whole block, or the half-open range ``[first, last)`` of step numbers.

    Only outermost steps of a thread count. The window opens at the entry of the first step inside the range; that
    step's name is then the one that counts, so that an evaluation loop with small numbers does not close it. It closes
    at the exit of step ``last - 1``, or at the entry of a later step where numbers leave gaps.
    """

    def __init__(self, steps: tuple[int, int] | None) -> None:
        self._steps = steps
        self._depth: dict[int, int] = {}
        self.phase = Phase.IDLE
        self.name: str | None = None
        self.first_number: int | None = None
        self.seen: tuple[int, int] | None = None

    def begin(self) -> Action | None:
        """The block is entered."""
        if self._steps is not None:
            self.phase = Phase.ARMED
            return None
        self.phase = Phase.RECORDING
        return Action.START

    def is_outermost(self, thread: int) -> bool:
        """Whether the next step that ``thread`` enters lies in no other one."""
        return not self._depth.get(thread)

    def step_entered(self, thread: int, name: str, number: int) -> Action | None:
        """Thread ``thread`` enters step ``number`` of ``name``; called before the step's start is stamped."""
        depth = self._depth.get(thread, 0)
        self._depth[thread] = depth + 1
        if depth or self._steps is None:
            return None
        first, last = self._steps
        low, high = self.seen or (number, number)
        self.seen = (min(low, number), max(high, number))
        if self.phase is Phase.ARMED and first <= number < last:
            self.phase, self.name, self.first_number = Phase.RECORDING, name, number
            return Action.START
        if self.phase is Phase.RECORDING and name == self.name and number >= last:
            self.phase = Phase.OVER
            return Action.STOP
        return None

    def step_exited(self, thread: int, name: str, number: int) -> Action | None:
        """Thread ``thread`` has left step ``number`` of ``name``, with or without an exception."""
        # A block may begin inside a step: its exit is then seen without its entry.
        depth = max(self._depth.get(thread, 1) - 1, 0)
        self._depth[thread] = depth
        if depth or self._steps is None or self.phase is not Phase.RECORDING:
            return None
        if name == self.name and number >= self._steps[1] - 1:
            self.phase = Phase.OVER
            return Action.STOP
        return None

    def end(self) -> Action | None:
        """The block is left, in whatever way."""
        was_recording = self.phase is Phase.RECORDING
        self.phase = Phase.OVER
        return Action.STOP if was_recording else None
