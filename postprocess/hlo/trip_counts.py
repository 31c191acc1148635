"""How often a while loop runs: as XLA states it, else inferred from its counter, else not known."""

from __future__ import annotations

from xprof_py.postprocess.hlo.custom_calls import parsed
from xprof_py.postprocess.hlo.shapes import Instructions


def trip_count(instructions: Instructions, op: int) -> int | None:
    """Trip count of the while in row ``op``; None where neither XLA nor its counter tells it."""
    stated = parsed(instructions.text(op, "backend_config")).get("known_trip_count")
    try:
        return max(int(stated["n"]), 0) if isinstance(stated, dict) else _inferred(instructions, op)
    except (KeyError, TypeError, ValueError):
        return _inferred(instructions, op)


def _inferred(see: Instructions, op: int) -> int | None:
    """Counter starts at a constant, rises by a constant each time, is compared with a constant."""
    body_and_condition = see.called(op)
    if len(body_and_condition) != 2 or not see.operands(op):
        return None
    # XLA writes the body first and the condition second.
    body, condition = (see.root(computation) for computation in body_and_condition)
    if body is None or condition is None:
        return None
    compare, inside = see.source(condition)
    sides = see.operands(compare)
    if see.opcode(compare) != "compare" or len(sides) != 2:
        return None
    index = _counter(see, sides[0], inside)
    limit = _constant(see, sides[1], inside)
    if index is None or limit is None:
        return None
    start = _constant(see, _element(see, see.operands(op)[0], index), ())
    step = _step(see, _element(see, body, index), index)
    if start is None or not step:
        return None
    direction = see.text(compare, "comparison_direction")
    if direction in ("GT", "GE"):
        start, limit, step = -start, -limit, -step
        direction = {"GT": "LT", "GE": "LE"}[direction]
    if step < 0 or direction not in ("LT", "LE"):
        return None
    distance = limit - start + (1 if direction == "LE" else 0)
    return max(-(-distance // step), 0)


def _element(see: Instructions, op: int, index: int) -> int | None:
    """What makes element ``index`` of the tuple that ``op`` makes."""
    maker, inside = see.source(op)
    parts = see.operands(maker)
    if inside or see.opcode(maker) != "tuple" or index >= len(parts):
        return None
    return parts[index]


def _counter(see: Instructions, op: int, callers: tuple[int, ...]) -> int | None:
    """Which element of the loop's state a value is."""
    maker, inside = see.source(op, callers)
    if see.opcode(maker) != "get-tuple-element" or inside or not see.operands(maker):
        return None
    if see.opcode(see.operands(maker)[0]) != "parameter":
        return None
    return see.value(maker, "tuple_index")


def _constant(see: Instructions, op: int | None, callers: tuple[int, ...]) -> int | None:
    if op is None:
        return None
    maker, _ = see.source(op, callers)
    values = see.values(maker, "literal")
    return values[0] if see.opcode(maker) == "constant" and len(values) == 1 else None


def _step(see: Instructions, op: int | None, index: int) -> int | None:
    """The constant that is added to element ``index`` of the loop's state each time."""
    if op is None:
        return None
    add, inside = see.source(op)
    sides = see.operands(add)
    if see.opcode(add) != "add" or len(sides) != 2:
        return None
    for counter, other in (sides, sides[::-1]):
        if _counter(see, counter, inside) == index:
            return _constant(see, other, inside)
    return None
