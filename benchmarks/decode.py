"""What reading a large XSpace costs, against the two readers a Python user has: jax.profiler.ProfileData and protobuf.

    python benchmarks/decode.py [--events 1000000] [--rounds 5] [--json] [--only kineto]

Two files of the shape that JAX on CPU writes: `spans` (host annotations, one stat each) and `thunks` (HLO ops, four
stats each). Every reader runs in a process of its own, round-robin so that the machine's load hits all alike, and must
deliver the same: name, start and duration of every event, and every stat with its key. `parse` is what the other two
need only to open the file; the others are the whole way. A third file, `kineto`, is the trace of one rank of PyTorch,
gzip; there the others only parse it with json and orjson, the floor of whoever uses them. HTA's load is measured where
XPROF_PY_HTA_PYTHON names a Python that has HolisticTraceAnalysis. Printed are medians of CPU seconds and of the
resident memory that the reading added, and the ratios to read_xspace with their spread over the rounds.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
EVENTS_PER_LINE = 100_000


def write_space(file: Path, events: int, stats: int) -> None:
    """One plane of lines of EVENTS_PER_LINE sorted events, with ``stats`` stats each (1 or 4)."""
    sys.path.insert(0, str(ROOT / "tests"))
    from xspace_schema import XSpace

    head = XSpace(hostnames=["bench"])
    session = head.planes.add(name="Task Environment")
    session.stat_metadata[1].name = "profile_start_time"
    session.stats.add(metadata_id=1, uint64_value=1_796_000_000_000_000_000)
    tail = XSpace()
    plane = tail.planes.add(name="/host:CPU")
    for number in range(1, 201):
        plane.event_metadata[number].name = f"fusion.{number}"
        plane.stat_metadata[number].name = f"value {number}"
    for number, name in enumerate(("step", "hlo_op", "program_id", "run_id"), 301):
        plane.stat_metadata[number].name = name
    source = XSpace()
    line = source.planes.add().lines.add(name="line", timestamp_ns=5000)
    for number in range(min(events, EVENTS_PER_LINE)):
        event = line.events.add(metadata_id=1 + number % 200, offset_ps=number * 3_000_000, duration_ps=2_000_000)
        event.stats.add(metadata_id=301, int64_value=number)
        if stats == 4:
            event.stats.add(metadata_id=302, ref_value=1 + number % 200)
            event.stats.add(metadata_id=303, int64_value=30)
            event.stats.add(metadata_id=304, int64_value=-327641909 + number // 50)
    # A message written twice is merged, so lines are repeated by repeating bytes: no second copy in Python.
    one_line = source.planes[0].SerializeToString()
    of_plane = plane.SerializeToString()
    count = max(1, events // EVENTS_PER_LINE)
    with file.open("wb") as opened:
        opened.write(head.SerializeToString())
        length, size = len(one_line) * count + len(of_plane), bytearray()
        while length >= 0x80:
            size.append(length & 0x7F | 0x80)
            length >>= 7
        opened.write(bytes([0x0A, *size, length]))
        for _ in range(count):
            opened.write(one_line)
        opened.write(of_plane)


def read_ours(file: str) -> int:
    from xprof_py.postprocess.readers.xspace import read_xspace

    profile = read_xspace(file)
    return len(profile["events"]) + len(profile["args"])


def decode_ours(file: str) -> int:
    from xprof_py import _native

    columns = _native.decode_xspace(Path(file).read_bytes())
    return len(columns["events"]["line"]) + len(columns["event_stats"]["owner"])


def parse_jax(file: str) -> int:
    from jax.profiler import ProfileData

    return sum(1 for _ in ProfileData.from_file(file).planes)


def read_jax(file: str) -> int:
    from jax.profiler import ProfileData

    seen = 0
    for plane in ProfileData.from_file(file).planes:
        for line in plane.lines:
            for event in line.events:
                _ = event.name, event.start_ns, event.duration_ns
                seen += 1 + sum(1 for _ in event.stats)
    return seen


def parse_protobuf(file: str) -> Any:
    from xspace_schema import XSpace

    space = XSpace()
    space.ParseFromString(Path(file).read_bytes())
    return space


def read_protobuf(file: str) -> int:
    seen = 0
    for plane in parse_protobuf(file).planes:
        keys = {number: entry.name for number, entry in plane.stat_metadata.items()}
        names = {number: entry.name for number, entry in plane.event_metadata.items()}
        for line in plane.lines:
            for event in line.events:
                _ = names[event.metadata_id], event.offset_ps, event.duration_ps
                seen += 1
                for stat in event.stats:
                    value = getattr(stat, stat.WhichOneof("one"))
                    _ = keys[stat.metadata_id], keys[value] if stat.HasField("ref_value") else value
                    seen += 1
    return seen


def write_kineto(file: Path, events: int, rank: int = 0) -> None:
    """A rank as Kineto writes it: per unit two operations, a call, two ends of a flow and a kernel; 5000 units a step,
    an all-reduce with its arguments every 40."""
    units = max(1, events // 6)
    end = "\n  },\n"
    with gzip.open(file, "wt", compresslevel=6, encoding="utf-8") as out:
        out.write('{\n  "schemaVersion": 1,\n')
        out.write(f'  "distributedInfo": {{"backend": "nccl", "rank": {rank}, "world_size": 8}},\n')
        out.write('  "baseTimeNanoseconds": 1711964646000000000,\n  "traceEvents": [\n')
        for unit in range(units):
            at, cid = 4458676522690 + 200 * unit, unit + 1
            if unit % 5000 == 0:
                out.write(
                    f'  {{\n    "ph": "X", "cat": "user_annotation", "name": "ProfilerStep#{unit // 5000}", '
                    f'"pid": 4100, "tid": 4100,\n    "ts": {at}.000, "dur": {200 * 5000 - 1}.000,\n    '
                    f'"args": {{\n      '
                    f'"External id": {cid}, "Ev Idx": {unit}\n    }}{end}'
                )
            name = NCCL_NAME if unit % 40 == 0 else f"void kernel_{unit % 200}<float, 4>(float*, int)"
            more = NCCL_ARGS.replace("SEQ", str(unit // 40)) if unit % 40 == 0 else ""
            for depth, operation in enumerate(("aten::linear", "aten::addmm")):
                out.write(
                    f'  {{\n    "ph": "X", "cat": "cpu_op", "name": "{operation}", "pid": 4100, "tid": 4100,\n    '
                    f'"ts": {at + 2 * depth}.{unit % 1000:03}, "dur": {90 - 10 * depth}.250,\n    "args": {{\n      '
                    f'"External id": {cid}, "Record function id": 0, "Input Dims": [[128, 64], [64, 64]], '
                    f'"Ev Idx": {unit}\n    }}{end}'
                )
            out.write(
                f'  {{\n    "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 4100, '
                f'"tid": 4100,\n    "ts": {at + 10}.5, "dur": 5.125,\n    "args": {{\n      '
                f'"External id": {cid}, "cbid": 211, '
                f'"correlation": {cid}\n    }}{end}'
            )
            flow = f'"id": {cid}, "cat": "ac2g", "name": "ac2g"'
            out.write(f'  {{\n    "ph": "s", "pid": 4100, "tid": 4100, "ts": {at + 10}.5, {flow}{end}')
            out.write(f'  {{\n    "ph": "f", "pid": 0, "tid": 7, "ts": {at + 30}.0, {flow}, "bp": "e"{end}')
            out.write(
                f'  {{\n    "ph": "X", "cat": "kernel", "name": "{name}", "pid": 0, "tid": 7,\n    '
                f'"ts": {at + 30}.000, "dur": 120.750,\n    "args": {{\n      '
                f'"External id": {cid}, "queued": 0, "device": 0, "context": 1, '
                f'"stream": 7, "correlation": {cid}, "registers per thread": 40,\n      "grid": [2400, 1, 1], '
                f'"block": [256, 1, 1]{more}\n    }}{end}'
            )
        out.write('  {"ph": "i", "s": "g", "name": "Record Window End", "pid": "Traces", "tid": "Trace", ')
        out.write(f'"ts": {4458676522690 + 200 * units}}}\n  ], "displayTimeUnit": "ms"\n}}\n')


NCCL_NAME = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
NCCL_ARGS = (
    ', "Collective name": "allreduce", "In msg nelems": 1024, "Out msg nelems": 1024, "Group size": 8, '
    '"dtype": "Float", "Process Group Name": "0", "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]", "Seq": SEQ'
)


def read_kineto(file: str) -> int:
    from xprof_py.postprocess.readers.chrome_json import read_chrome_json

    return len(read_chrome_json(file)["events"])


def scan_kineto(file: str) -> int:
    from xprof_py import _native
    from xprof_py.postprocess.readers.chrome_text import Pieces

    scanner = _native.ChromeScanner()
    for piece in Pieces(file):
        scanner.feed(piece)
    return len(scanner.finish()["events"]["us"])


def unpack_kineto(file: str) -> int:
    from xprof_py.postprocess.readers.chrome_text import Pieces

    return sum(len(piece) for piece in Pieces(file))


def parse_json(file: str) -> int:
    with gzip.open(file) as opened:
        return sum(event["ph"] in "Xi" for event in json.load(opened)["traceEvents"])


def parse_orjson(file: str) -> int:
    import orjson

    with gzip.open(file) as opened:
        return sum(event["ph"] in "Xi" for event in orjson.loads(opened.read())["traceEvents"])


HTA = """
import json, resource, sys, time
from hta.common.trace import Trace
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
start = time.process_time()
trace = Trace(trace_files={0: sys.argv[1]}, trace_dir="")
trace.parse_traces(use_multiprocessing=False)
cpu_s = time.process_time() - start
added = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before
print(json.dumps({"cpu_s": cpu_s, "added_mib": added, "seen": 0}))
"""

KINETO_READERS = {
    "read_chrome_json": read_kineto,
    "  of it the scanner": scan_kineto,
    "  of it decompression": unpack_kineto,
    "orjson, parse": parse_orjson,
    "json, parse": parse_json,
}

READERS = {
    "read_xspace": read_ours,
    "  of it decode_xspace": decode_ours,
    "ProfileData": read_jax,
    "ProfileData, parse": parse_jax,
    "protobuf": read_protobuf,
    "protobuf, parse": parse_protobuf,
}


def measured_here(reader: str, file: str) -> dict[str, float]:
    """Run one reader in this process: CPU seconds and MiB added, imports not counted."""
    sys.path.insert(0, str(ROOT / "tests"))
    import xprof_py.postprocess.readers.chrome_json
    import xprof_py.postprocess.readers.xspace  # noqa: F401
    import xspace_schema  # noqa: F401

    if reader.startswith("ProfileData"):
        import jax.profiler  # noqa: F401
    before_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    start_s = time.process_time()
    result = {**READERS, **KINETO_READERS}[reader](file)
    cpu_s = time.process_time() - start_s
    added_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before_mib
    return {"cpu_s": cpu_s, "added_mib": added_mib, "seen": result if isinstance(result, int) else 0}


def measured(reader: str, file: Path) -> dict[str, float]:
    if reader == "HTA, load":
        command = [os.environ["XPROF_PY_HTA_PYTHON"], "-c", HTA, str(file)]
    else:
        command = [sys.executable, __file__, "--reader", reader, "--file", str(file)]
    finished = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(finished.stdout.splitlines()[-1]))


def compare(file: Path, rounds: int, readers: tuple[str, ...], whole: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Medians of every reader over interleaved rounds, and the spread of its CPU ratio to the first one.

    ``whole``: the readers that must see the same.
    """
    runs: dict[str, list[dict[str, float]]] = {reader: [] for reader in readers}
    for _ in range(rounds):
        for reader in readers:
            runs[reader].append(measured(reader, file))
    ours = [run["cpu_s"] for run in runs[readers[0]]]
    seen = {reader: runs[reader][0]["seen"] for reader in whole}
    if len(set(seen.values())) != 1:
        raise SystemExit(f"the readers do not see the same: {seen}")
    table = {}
    for reader, of_reader in runs.items():
        ratios = sorted(run["cpu_s"] / own for run, own in zip(of_reader, ours, strict=True))
        table[reader] = {
            "cpu_s": statistics.median(run["cpu_s"] for run in of_reader),
            "added_mib": statistics.median(run["added_mib"] for run in of_reader),
            "ratio": statistics.median(ratios),
            "ratio_spread": [ratios[0], ratios[-1]],
        }
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the tables")
    parser.add_argument("--only", choices=["spans", "thunks", "kineto"], help="this file alone")
    parser.add_argument("--reader", choices=[*READERS, *KINETO_READERS], help=argparse.SUPPRESS)
    parser.add_argument("--file", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.reader:
        print(json.dumps(measured_here(options.reader, options.file)))
        return
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        if options.only in (None, "kineto"):
            file = Path(folder) / "rank0.json.gz"
            write_kineto(file, options.events)
            readers = (*KINETO_READERS, *(["HTA, load"] if os.environ.get("XPROF_PY_HTA_PYTHON") else []))
            whole = ("read_chrome_json", "orjson, parse", "json, parse")
            results["kineto"] = {
                "mib": file.stat().st_size / 2**20,
                "readers": compare(file, options.rounds, readers, whole),
            }
            file.unlink()
        for shape, stats in (("spans", 1), ("thunks", 4)):
            if options.only not in (None, shape):
                continue
            file = Path(folder) / f"{shape}.xplane.pb"
            write_space(file, options.events, stats)
            results[shape] = {
                "mib": file.stat().st_size / 2**20,
                "readers": compare(file, options.rounds, tuple(READERS), ("read_xspace", "ProfileData", "protobuf")),
            }
            file.unlink()
    if options.json:
        print(json.dumps(results, indent=1))
        return
    for shape, result in results.items():
        print(f"{shape}: {options.events} events, {result['mib']:.1f} MiB, {options.rounds} rounds")
        print(f"  {'':24}{'CPU s':>8}{'MiB':>8}   times the first")
        for reader, row in result["readers"].items():
            low, high = row["ratio_spread"]
            spread = f"{row['ratio']:.2f} ({low:.2f}-{high:.2f})"
            print(f"  {reader:24}{row['cpu_s']:8.3f}{row['added_mib']:8.0f}   {spread}")


if __name__ == "__main__":
    main()
