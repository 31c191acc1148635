"""Launched graphs of which the trace lost kernels: what it calls idle there may be work that nobody recorded.

Every launch of a graph runs the same nodes, so it has as many kernels and copies as any other launch of that graph on
its lane. The most that any launch shows are the graph's. A launch that shows less than half of them is short; a little
less may be a branch of the graph that was not taken.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from xprof_py.postprocess.join.columns import Events, Int64, distinct
from xprof_py.postprocess.join.device_ops import DeviceOps

GRAPH_KEYS = ("graph id", "cuda_graph_id", "cuda_graph_exec_id")
"""Arguments that name the graph that a kernel is a node of; 0 is none."""


@dataclass(frozen=True)
class ShortGraphs:
    """``launch``: rows of launches that are short; ``shown`` kernels each, of ``whole`` that its graph has."""

    launch: Int64
    shown: Int64
    whole: Int64


def short_graphs(events: Events, ops: DeviceOps) -> ShortGraphs:
    """Short launches in order of row; ``ops.launch`` must be set. Kernels that name no graph are judged nowhere."""
    graph = np.zeros(len(ops.event), np.int64)
    for key in GRAPH_KEYS:
        has, value = events.argument_of(key, ops.event)
        graph = np.where((graph == 0) & has, value, graph)
    nodes = np.flatnonzero((graph != 0) & (ops.launch >= 0) & ops.leaf)
    if not len(nodes):
        none = np.zeros(0, np.int64)
        return ShortGraphs(none, none, none)
    first, group = distinct(ops.lane[nodes], graph[nodes], ops.launch[nodes])
    shown = np.bincount(group, minlength=len(first))
    _, of_graph = distinct(ops.lane[nodes][first], graph[nodes][first])
    whole = np.zeros(int(of_graph.max()) + 1, np.int64)
    np.maximum.at(whole, of_graph, shown)
    short = np.flatnonzero(2 * shown < whole[of_graph])
    short = short[np.argsort(ops.launch[nodes][first][short], kind="stable")]
    return ShortGraphs(ops.launch[nodes][first][short], shown[short], whole[of_graph][short])
