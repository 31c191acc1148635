"""Programs that XLA really compiled for an H200, with activity made up from its own list of launches: every kernel
finds the instruction that the compiler says it is of.

No GPU is needed, but the wheel jax-cuda13-pjrt in the version of jaxlib: XPROF_PY_CUDA_PLUGIN names its
xla_cuda_plugin.so. It is 130 MB, and a JAX that has it installed looks for a GPU: so it is not among the test extras.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from gpu_shards import GpuShard

from xprof_py.collectors.hlo_modules import hlo_proto
from xprof_py.postprocess.profile import Profile

VARIABLE = "XPROF_PY_CUDA_PLUGIN"
PROGRAM = Path(__file__).parents[1] / "workloads" / "gpu_programs.py"
LOOP_TRIPS = 5
LIBRARY = "nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_TNN"


@dataclass(frozen=True)
class Launch:
    """What one thunk launches: a kernel's name, "" for a copy on the device; ``op``: of which instruction."""

    kernel: str
    op: str


@pytest.fixture(scope="module", params=["blocks", "blocks_of_cublas", "mixed"])
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, list[Launch]]:
    """(HloProto, launches of one execution in order)."""
    plugin = os.environ.get(VARIABLE)
    if not plugin:
        pytest.skip(f"{VARIABLE} does not name xla_cuda_plugin.so of the wheel jax-cuda13-pjrt of jaxlib's version")
    pytest.importorskip("jax")
    folder = tmp_path_factory.mktemp(request.param)
    command = [sys.executable, str(PROGRAM), plugin, request.param, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return hlo_proto((folder / "module.pb").read_bytes()), launches(folder)


def launches(folder: Path) -> list[Launch]:
    """XLA's thunks in the order of an execution, a loop as often as it runs, with the instruction of each."""
    op_of = {}
    for block in next(folder.glob("*jit_*.thunk_metadata.txt")).read_text().split("thunk_metadata")[1:]:
        op, number = re.search(r'profile_annotation: "(.*?)"', block), re.search(r"thunk_id: (\d+)", block)
        if op and number:
            op_of[int(number[1])] = op[1]
    found: list[Launch] = []
    loop: dict[str, list[Launch]] = {"condition": [], "body": []}
    part = ""
    for line in [*next(folder.glob("*jit_*.thunk_sequence.txt")).read_text().splitlines(), "end"]:
        thunk = re.match(r"( *)(\d+): (k\w+) +\[.*?\] (\S*)", line)
        if thunk is None:
            part = line.strip().removesuffix(":") if line.strip() in ("condition:", "body:") else part
        if part and ((thunk and not thunk[1]) or line == "end"):
            found += (loop["condition"] + loop["body"]) * LOOP_TRIPS + loop["condition"]
            loop, part = {"condition": [], "body": []}, ""
        # What a while or a slice holds follows it.
        if thunk and thunk[3] not in ("kWhile", "kDynamicSliceFusion"):
            kernel = {"kCopy": "", "kCublasLtMatmul": LIBRARY, "kGemm": LIBRARY}.get(thunk[3], thunk[4])
            (loop[part] if part else found).append(Launch(kernel, op_of[int(thunk[2])]))
    return found


def executed(hlo: bytes, program: list[Launch], *, ranges: bool, graph: bool, times: int) -> GpuShard:
    """Executions of a program in steps of their own: thunk by thunk, or as one graph."""
    shard = GpuShard(10_000_000)
    shard.program(1, "jit_f", hlo)
    length = 20 * len(program) + 100
    for number in range(times):
        at = number * 10 * length
        shard.span(900, "train", at, at + length, number=number)
        shard.span(900, "XlaModule:#prefix=jit(f)/jit(main),hlo_module=jit_f,program_id=1#", at + 5, at + length - 5)
        call = shard.call(at + 10, at + 15, name="cuGraphLaunch") if graph else 0
        for i, launch in enumerate(program):
            begun, start = at + 20 + 20 * i, at + length + 50 * i
            told = f"Thunk:#name=jit(f)/op,hlo_op={launch.op},unique_hlo_op_id={i}#" if ranges else None
            here = {"graph": 3, "node": 1000 + i} if graph else {}
            if graph and ranges:
                shard.node(1000 + i, told)
            if not graph:
                call = shard.call(begun, begun + 10, range=told)
            of_record = None if graph else told
            if launch.kernel:
                shard.kernel(launch.kernel, start, start + 40, call, range=of_record, **here)
            else:
                shard.copy(start, start + 40, call, 64, kind=8, memory=(3, 3), range=of_record, **here)
    return shard


def found(joined: Profile) -> list[tuple[str | None, str]]:
    names = joined["hlo_ops"]["name"].to_pylist()
    return [(None if op["hlo_op"] is None else names[op["hlo_op"]], op["join"]) for op in joined["ops"].to_pylist()]


@pytest.mark.parametrize("graph", [False, True])
def test_with_ranges_every_launch_finds_its_instruction(
    tmp_path: Path, compiled: tuple[bytes, list[Launch]], graph: bool
) -> None:
    hlo, program = compiled
    joined = executed(hlo, program, ranges=True, graph=graph, times=3).joined(tmp_path)
    how = "graph_node" if graph else "stated"
    assert found(joined) == [(launch.op, how) for launch in program] * 3
    assert joined["runs"]["step"].to_pylist() == [0, 1, 2]


@pytest.mark.parametrize("graph", [False, True])
def test_without_ranges_the_order_of_launches_finds_every_kernel(
    tmp_path: Path, compiled: tuple[bytes, list[Launch]], graph: bool
) -> None:
    """Copies are of nobody then: any fusion may be one."""
    hlo, program = compiled
    joined = executed(hlo, program, ranges=False, graph=graph, times=3).joined(tmp_path)
    given = found(joined)
    assert [op for op, _ in given] == [launch.op if launch.kernel else None for launch in program] * 3
    hows = {how for _, how in given}
    assert hows <= {"name", "graph_order" if graph else "order", "none"}
