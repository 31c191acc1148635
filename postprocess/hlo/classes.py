"""The class of an op by its HLO opcode (BREAKDOWN.md 4), never by its name.

Which of the ops that come out as `compute` are bound by memory is told from flops, bytes and peaks in
join/memory_bound.py.
"""

from __future__ import annotations

COLLECTIVES = frozenset(
    {
        "all-gather",
        "all-reduce",
        "all-to-all",
        "collective-broadcast",
        "collective-permute",
        "ragged-all-to-all",
        "reduce-scatter",
    }
)
HOST_TRANSFERS = frozenset({"infeed", "outfeed"})
"""Waits for the host: they take the class of what they wait for."""
PEER_TRANSFERS = frozenset({"send", "recv", "send-done", "recv-done"})
COPIES = frozenset({"copy"})
"""Copies on the device itself, unless their shapes say that they go to or from the host (join/memory_bound.py)."""
CONTAINERS = frozenset({"while", "conditional", "call", "async-start", "async-update", "async-done"})
"""Opcodes that may hold other ops. A container with no op inside it, ever, is a leaf."""


def class_of(opcode: str) -> str:
    """`collective`, `host_device`, `memory` or `compute`; ``x-start`` and ``x-done`` have the class of ``x``."""
    stem = opcode.removesuffix("-start").removesuffix("-done").removesuffix("-update")
    if stem in COLLECTIVES or opcode in PEER_TRANSFERS:
        return "collective"
    if stem in HOST_TRANSFERS:
        return "host_device"
    if stem in COPIES:
        return "memory"
    return "compute"
