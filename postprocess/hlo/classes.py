"""The class of an op by its HLO opcode (BREAKDOWN.md 4), never by its name.

`memory` needs flops, bytes and peaks, which the cost model will bring: until then such ops count as `compute`, and a
diagnostics row says that `memory` is unavailable, so that two runs are not compared as equals.
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
CONTAINERS = frozenset({"while", "conditional", "call", "async-start", "async-update", "async-done"})
"""Opcodes that may hold other ops. A container with no op inside it, ever, is a leaf."""


def class_of(opcode: str) -> str:
    """`collective`, `host_device` or `compute`; ``x-start`` and ``x-done`` have the class of ``x``."""
    stem = opcode.removesuffix("-start").removesuffix("-done").removesuffix("-update")
    if stem in COLLECTIVES or opcode in PEER_TRANSFERS:
        return "collective"
    if stem in HOST_TRANSFERS:
        return "host_device"
    return "compute"
