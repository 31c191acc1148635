"""SQLite exports of Nsight Systems, made by hand with the columns of several versions. Times in microseconds.

The columns of "2026" are those of a public export of schema 3.25; the others are what NVIDIA documents of theirs.
"""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path
from typing import Any

from xprof_py.postprocess.join import join_profile
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.readers.nsys import GRAPH as GRAPH_TRACE
from xprof_py.postprocess.readers.nsys import KERNEL, MEMCPY, MEMSET, NVTX, RUNTIME, SYNC, read_nsys

BEGAN_NS = 1_779_782_330_176_752_435
HOST_BITS = 1 << 48
PUSH_POP, START_END, MARK = 59, 60, 34

_WORK = "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL"
_OF = "streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER"
_SHAPE = ", ".join(f"{name} INTEGER NOT NULL" for name in ("registersPerThread", "gridX", "gridY", "gridZ", "blockX"))
_VALUES = "uint64Value INTEGER, int64Value INTEGER, doubleValue REAL, uint32Value INTEGER, int32Value INTEGER"


def _schema(version: str) -> dict[str, str]:
    """Columns per table, in SQL."""
    green = ", greenContextId INTEGER" if version == "2026" else ""
    node = "" if version == "2020" else ", graphNodeId INTEGER"
    devices = "" if version == "2020" else ", srcDeviceId INTEGER, dstDeviceId INTEGER"
    out = {
        "StringIds": "id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL",
        "ThreadNames": "nameId INTEGER NOT NULL, priority INTEGER, globalTid INTEGER",
        KERNEL: f"{_WORK}{green}, {_OF}, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, {_SHAPE}{node}",
        MEMCPY: f"{_WORK}{green}, {_OF}, bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL, srcKind INTEGER, "
        f"dstKind INTEGER{devices}{node}",
        MEMSET: f"{_WORK}{green}, {_OF}, value INTEGER NOT NULL, bytes INTEGER NOT NULL, memKind INTEGER{node}",
        SYNC: f"{_WORK}{green}, {_OF}, syncType INTEGER NOT NULL, eventId INTEGER NOT NULL",
        RUNTIME: "start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, globalTid INTEGER, "
        "correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL, callchainId INTEGER",
        NVTX: "start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER, category INTEGER, "
        "color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER, "
        + _VALUES,
    }
    if version != "2020":
        out[GRAPH_TRACE] = f"{_WORK}, {_OF}, graphId INTEGER NOT NULL, graphExecId INTEGER"
        out["TARGET_INFO_SESSION_START_TIME"] = "utcEpochNs INTEGER, utcTime TEXT, localTime TEXT"
    if version == "2026":
        out["META_DATA_EXPORT"] = "name TEXT NOT NULL, value TEXT"
    return out


VERSIONS = ("2020", "2022", "2026")


class Report:
    """A report; ``process``: of what is added next."""

    def __init__(self, version: str = "2026", process: int = 144) -> None:
        self.version, self.process = version, process
        self.schema = _schema(version)
        self.rows: dict[str, list[dict[str, Any]]] = {name: [] for name in self.schema}
        self.strings: dict[str, int] = {}
        self._correlation = 0
        if "META_DATA_EXPORT" in self.schema:
            self.rows["META_DATA_EXPORT"].append({"name": "EXPORT_PRODUCT_VERSION", "value": "2026.2.1.210"})
        if "TARGET_INFO_SESSION_START_TIME" in self.schema:
            self.rows["TARGET_INFO_SESSION_START_TIME"].append({"utcEpochNs": BEGAN_NS})

    @property
    def global_pid(self) -> int:
        return HOST_BITS + (self.process << 24)

    def string(self, text: str) -> int:
        return self.strings.setdefault(text, 100 + len(self.strings))

    def add(self, table: str, start: float, stop: float | None, **columns: Any) -> Report:
        """A row of [start, stop) microseconds; columns that the version does not have are left out."""
        times = {"start": round(start * 1000), "end": None if stop is None else round(stop * 1000)}
        row = {**times, **columns}
        self.rows[table].append({name: value for name, value in row.items() if f"{name} " in self.schema[table]})
        return self

    def on_thread(self, thread: int | None) -> int:
        return self.global_pid + (self.process if thread is None else thread)

    def range(self, text: str, start: float, stop: float | None, *, thread: int | None = None, **more: Any) -> Report:
        row = {"eventType": PUSH_POP, "text": text, "globalTid": self.on_thread(thread), **more}
        return self.add(NVTX, start, stop, **row)

    def call(self, name: str, start: float, stop: float, correlation: int, thread: int | None = None) -> Report:
        return self.add(
            RUNTIME, start, stop, globalTid=self.on_thread(thread), correlationId=correlation, nameId=self.string(name)
        )

    def work(self, table: str, start: float, stop: float, *, device: int = 0, stream: int = 7, **more: Any) -> Report:
        where = {"deviceId": device, "contextId": 1, "streamId": stream, "globalPid": self.global_pid}
        return self.add(table, start, stop, **{**where, **more})

    def launched(
        self, call: tuple[float, float], work: tuple[float, float], name: str = "gemm<float>(int)", **more: Any
    ) -> Report:
        """A kernel and the call that launched it."""
        self._correlation += 1
        correlation = more.pop("correlationId", self._correlation)
        self.call("cudaLaunchKernel_v7000", *call, correlation, more.pop("thread", None))
        names = {"demangledName": self.string(name), "shortName": self.string(name.split("<")[0])}
        return self.work(KERNEL, *work, correlationId=correlation, **names, **more)

    def written(self, file: Path, seed: int | None = None) -> Path:
        """The file; with a ``seed`` the rows of every table are in another order."""
        rows = {table: list(found) for table, found in self.rows.items()}
        rows["StringIds"] = [{"id": code, "value": text} for text, code in self.strings.items()]
        with sqlite3.connect(file) as database:
            for table, columns in self.schema.items():
                database.execute(f"create table {table} ({columns})")
                needed = [c.split()[0] for c in columns.split(", ") if "NOT NULL" in c and c.split()[1] == "INTEGER"]
                found = rows[table]
                if seed is not None:
                    random.Random(seed).shuffle(found)
                for row in found:
                    whole = {**dict.fromkeys(needed, 0), **row}
                    marks = ", ".join("?" * len(whole))
                    names = ", ".join(f'"{name}"' for name in whole)
                    database.execute(f"insert into {table} ({names}) values ({marks})", list(whole.values()))
        database.close()
        return file

    def read(self, folder: Path, member: str = "", **how: Any) -> Profile:
        return read_nsys(self.written(folder / "report.sqlite"), member, **how)

    def joined(self, folder: Path) -> Profile:
        return join_profile(self.read(folder))


def three_steps(report: Report, word: str = "step") -> Report:
    """Three steps of 1000 us; each launches 5 kernels of 140 us that run on into the next step on the host."""
    for number in range(3):
        base = 1000 * number
        report.range(f"{word} {number}", base, base + 1000)
        for k in range(5):
            report.launched((base + 50 + 100 * k, base + 60 + 100 * k), (base + 700 + 140 * k, base + 840 + 140 * k))
    return report
