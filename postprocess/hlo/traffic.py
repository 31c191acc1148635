"""Bytes that an HLO instruction moves: from and to the device's memory, and over the network (rules: hlo/cost.py)."""

from __future__ import annotations

from xprof_py.postprocess.hlo.shapes import DEVICE_MEMORY, Array, Instructions

NOTHING_MOVES = frozenset(
    "parameter constant tuple get-tuple-element bitcast after-all domain optimization-barrier add-dependency"  # noqa: SIM905
    " partition-id replica-id get-dimension-size set-dimension-size while conditional call async-start async-update"
    " async-done copy-done all-gather-done all-reduce-done collective-permute-done send-done recv-done".split()
)
_TAKING = ("slice", "dynamic-slice", "gather")
_SAME_PLACE = ("bitcast", "reshape")
_SAME_ELEMENTS = ("bitcast", "reshape", "transpose", "copy", "convert")
_COLLECTIVES = frozenset(
    "all-reduce all-gather reduce-scatter all-to-all ragged-all-to-all collective-permute collective-broadcast".split()  # noqa: SIM905
)


def network_bytes(opcode: str, instructions: Instructions, op: int, groups: set[int]) -> int | None:
    """Bytes that a participant of a collective must send; 0 for anything else, None where its group is not known."""
    kind = opcode.removesuffix("-start")
    if kind not in _COLLECTIVES:
        return 0
    sizes = [array.bytes for operand in _unique(instructions, op) for array in instructions.arrays(operand)]
    sent = None if None in sizes else sum(size for size in sizes if size is not None)
    if kind in ("collective-permute", "collective-broadcast", "ragged-all-to-all"):
        return None if kind == "ragged-all-to-all" else sent
    if sent is None or len(groups) != 1:
        return None
    (count,) = groups
    if count < 1:
        return None
    if kind == "all-gather":
        return sent * (count - 1)
    return sent * (count - 1) // count * (2 if kind == "all-reduce" else 1)


def op_bytes(instructions: Instructions, op: int) -> tuple[int | None, int | None]:
    """(read, written) bytes of memory of one execution; each None where a shape does not tell it."""
    opcode = instructions.opcode(op)
    if opcode in NOTHING_MOVES:
        return 0, 0
    if opcode == "fusion":
        return _fusion_bytes(instructions, op)
    arrays = instructions.arrays(op)
    operands = instructions.operands(op)
    if not arrays:
        return None, None
    if opcode in _TAKING:
        # Of the array as much as the result holds; starts or indices in full.
        indices = _total([array for operand in operands[1:] for array in instructions.arrays(operand)])
        taken = _total(arrays)
        return (None if indices is None or taken is None else indices + taken), taken
    if opcode == "dynamic-update-slice" and len(operands) > 1:
        update = _total([array for operand in operands[1:] for array in instructions.arrays(operand)])
        return update, _total(instructions.arrays(operands[1]))
    if opcode == "scatter" and len(operands) >= 3:
        half = len(operands) // 2
        updates = _total([array for operand in operands[half + 1 :] for array in instructions.arrays(operand)])
        indices = _total(instructions.arrays(operands[half]))
        # Combining reads the place that is written.
        return (None if updates is None or indices is None else 2 * updates + indices), updates
    read = _total([array for operand in _unique(instructions, op) for array in instructions.arrays(operand)])
    if opcode == "copy-start":
        arrays = arrays[:1]
    elif opcode.endswith("-start") and any(array.element >= 0 for array in arrays):
        arrays = [array for array in arrays if array.element == 1]
    elif opcode in ("send", "outfeed"):
        arrays = []
    return read, _total(arrays)


def _unique(instructions: Instructions, op: int) -> list[int]:
    return list(dict.fromkeys(instructions.operands(op)))


def _total(arrays: list[Array]) -> int | None:
    """Bytes of those that lie in the device's memory."""
    sizes = [array.bytes if array.space == DEVICE_MEMORY else 0 for array in arrays]
    return None if None in sizes else sum(size for size in sizes if size is not None)


def _fusion_bytes(see: Instructions, op: int) -> tuple[int | None, int | None]:
    called, operands = see.called(op), see.operands(op)
    if not called:
        return None, None
    body = _Body(see, called[0])
    if body.root is None:
        return None, None
    read: dict[int, int] = {}
    for parameter in see.members(called[0]):
        if see.opcode(parameter) != "parameter":
            continue
        number = see.value(parameter, "parameter_number")
        needed = body.read_of(parameter)
        if needed is None or number >= len(operands):
            return None, body.written()
        # One operand may be passed twice: it is read once.
        read[operands[number]] = max(read.get(operands[number], 0), needed)
    return sum(read.values()), body.written()


class _Body:
    """The body of a fusion: what it reads of each parameter and writes of its result."""

    def __init__(self, see: Instructions, computation: int) -> None:
        self.see = see
        self.root = see.root(computation)
        self.users: dict[int, list[int]] = {}
        for op in see.members(computation):
            for operand in see.operands(op):
                self.users.setdefault(operand, []).append(op)
        self.results = []
        if self.root is not None:
            is_tuple = see.opcode(self.root) == "tuple"
            self.results = see.operands(self.root) if is_tuple else [self.root]
        self.in_place = {maker for result in self.results if (maker := self._updater(result)) is not None}

    def _updater(self, result: int) -> int | None:
        """The dynamic-update-slice or scatter that makes a result in the place of a parameter."""
        op = self._back(result)
        if self.see.opcode(op) not in ("dynamic-update-slice", "scatter") or len(self.see.operands(op)) < 2:
            return None
        if self.see.opcode(op) == "scatter" and len(self.see.operands(op)) != 3:
            return None
        target = self._back(self.see.operands(op)[0])
        return op if self.see.opcode(target) == "parameter" else None

    def _back(self, op: int) -> int:
        for _ in range(len(self.users) + 1):
            if self.see.opcode(op) not in _SAME_PLACE or not self.see.operands(op):
                break
            op = self.see.operands(op)[0]
        return op

    def written(self) -> int | None:
        """Bytes of the results; of those made in place the update's."""
        total = 0
        for result in self.results:
            maker = self._updater(result)
            arrays = (
                self.see.arrays(self.see.operands(maker)[-1 if self.see.opcode(maker) == "scatter" else 1])
                if maker is not None
                else self.see.arrays(result)
            )
            size = _total(arrays)
            if size is None or not arrays:
                return None
            total += size
        return total

    def read_of(self, parameter: int) -> int | None:
        """Bytes of a parameter that the body needs."""
        arrays = self.see.arrays(parameter)
        whole = _total(arrays)
        if not whole or len(arrays) != 1 or not arrays[0].elements:
            return whole
        elements = self._elements_of(parameter, 0)
        return whole if elements is None else min(whole, elements * (whole // arrays[0].elements))

    def _elements_of(self, op: int, depth: int) -> int | None:
        """How many elements of the value of ``op`` the body needs; None for all."""
        if op in self.results or depth > len(self.users):
            return None
        total = 0
        for user in self.users.get(op, ()):
            opcode = self.see.opcode(user)
            first = self.see.operands(user)[0] == op and self.see.operands(user).count(op) == 1
            if opcode in _TAKING and first:
                taken = self.see.arrays(user)
                count = taken[0].elements if taken else None
            elif user in self.in_place and first:
                # Combining into a place reads it; replacing it does not.
                updates = self.see.arrays(self.see.operands(user)[-1])
                count = (updates[0].elements if updates else None) if opcode == "scatter" else 0
            elif opcode in _SAME_ELEMENTS:
                count = self._elements_of(user, depth + 1)
            else:
                count = None
            if count is None:
                return None
            total += count
        return total
