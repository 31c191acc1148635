"""One collective, as every rank saw it: executions of all processes put together. Runs on one node, on endpoints alone.

A rank is a lane of a process. Executions are one collective if they have one key, by the first of these that there is:

    sequence   (group, number): where the trace has it
    run_id     (group, run id, op, which execution in the run): where run ids agree between ranks
    order      the same in (group, step, order), aligned with gaps (alignment.py)

A group is a set of ranks: the ranks of the ranks' program, in order of process index, by the device numbers of the op's
replica groups. Never matched by time; times only decide which of several equal events is missing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from xprof_py.errors import BadInputError
from xprof_py.postprocess.join.columns import Bool, Int64, distinct, integers
from xprof_py.postprocess.match.endpoints import Endpoints
from xprof_py.postprocess.match.order import Shared, put_in_order

METHODS = ("sequence", "run_id", "order")


@dataclass(frozen=True)
class Rank:
    """A lane of a process. ``process``: its place in the list that was matched; ``clock``: number of its clock."""

    process: int
    lane: int
    host: str
    clock: int


@dataclass(frozen=True)
class Collectives:
    """Columns per collective, in order of time, and per participation, in order of (collective, rank).

    ``kind``, ``source``, ``op``: texts. ``bytes``: of one participant, -1 unknown. ``expected``: how many take part,
    -1 unknown. ``method``: index of METHODS. ``synchronising``: as in endpoints.py, and two ranks at least were seen.

    Participations: ``of`` (collective), ``rank``, ``row`` (of that process's endpoints), ``start_ns``, ``end_ns``,
    ``waits_from_ns``: int64 ns on the rank's own clock. ``step``: row of the process's outermost steps, -1 for none.
    """

    ranks: tuple[Rank, ...]
    clocks: tuple[str, ...]
    kind: list[str]
    source: list[str]
    op: list[str]
    bytes: Int64
    expected: Int64
    method: Int64
    synchronising: Bool
    of: Int64
    rank: Int64
    row: Int64
    start_ns: Int64
    end_ns: Int64
    waits_from_ns: Int64
    step: Int64
    diagnostics: list[dict[str, Any]] = field(default_factory=list)

    @property
    def count(self) -> int:
        """How many collectives there are."""
        return len(self.kind)

    def times(self, most: int = 100_000) -> ClockTimes:
        """The synchronising ones that two clocks took part in, as arrays for the clock solver; ``most`` at most.

        Where there are more, those are taken that last least once all are there, in equal parts along the capture.
        """
        clock = np.array([rank.clock for rank in self.ranks], np.int64)[self.rank]
        shown = self.synchronising[self.of]
        pairs, _ = distinct(self.of[shown], clock[shown])
        seen = np.bincount(self.of[shown][pairs], minlength=self.count)
        columns = np.flatnonzero(self.synchronising & (seen >= 2))
        if len(columns) > most:
            columns = columns[np.linspace(0, len(columns) - 1, most).astype(np.int64)]
        place = np.full(self.count, -1, np.int64)
        place[columns] = np.arange(len(columns))
        use = np.flatnonzero(place[self.of] >= 0)
        at = (clock[use], place[self.of[use]])
        shape = (len(self.clocks), len(columns))
        start, end = np.full(shape, np.iinfo(np.int64).min), np.full(shape, np.iinfo(np.int64).max)
        np.maximum.at(start, at, self.start_ns[use])
        np.minimum.at(end, at, self.end_ns[use])
        present = np.zeros(shape, np.bool_)
        present[at] = True
        return ClockTimes(np.where(present, start, 0), np.where(present, end, 0), present, columns)


@dataclass(frozen=True)
class ClockTimes:
    """What clocks say of collectives that all wait for all: the fields of clocks.crowd.Meetings, of its shapes.

    ``start_ns``, ``end_ns``: int64, clocks x collectives: the last start and the first end of the ranks of that clock,
    0 where it is not ``present``. ``collective``: which ones they are.
    """

    start_ns: Int64
    end_ns: Int64
    present: npt.NDArray[np.bool_]
    collective: Int64


def match_collectives(processes: Sequence[Endpoints]) -> Collectives:
    """Put the collectives of all processes together.

    ``processes``: in order of process index, hosts named apart. Raises BadInputError where two have one process index:
    they are two runs, not two ranks.
    """
    _refuse_one_rank_twice(processes)
    clocks = tuple(dict.fromkeys(p.clock for p in processes))
    ranks = tuple(
        Rank(number, lane, p.host, clocks.index(p.clock))
        for number, p in enumerate(processes)
        for lane in range(p.lanes)
    )
    return _Match(processes, ranks, clocks).run()


def _refuse_one_rank_twice(processes: Sequence[Endpoints]) -> None:
    seen: dict[int, str] = {}
    for process in processes:
        index = process.process_index
        if index is None:
            continue
        if index in seen:
            both = f"{seen[index]} and {process.host}"
            raise BadInputError(both, "", f"are two runs, both with a process {index}: analyse one at a time")
        seen[index] = process.host


class _Match:
    """Executions of all processes as columns of one length, and what they are found to be."""

    def __init__(self, processes: Sequence[Endpoints], ranks: tuple[Rank, ...], clocks: tuple[str, ...]) -> None:
        self.processes, self.ranks, self.clocks = processes, ranks, clocks
        self.diagnostics: list[dict[str, Any]] = []
        first_rank = np.concatenate(([0], np.cumsum([p.lanes for p in processes])))
        tables = [p.table for p in processes]
        self.process = np.repeat(np.arange(len(tables)), [t.num_rows for t in tables])
        self.row = np.concatenate([np.arange(t.num_rows) for t in tables] or [np.empty(0, np.int64)]).astype(np.int64)
        self.rank = self._integers("lane") + first_rank[self.process]
        self.start, self.end = self._integers("start_ns"), self._integers("end_ns")
        self.waits_from = self._integers("waits_from_ns")
        self.bytes, self.place = self._integers("bytes"), self._integers("place")
        self.step, self.devices = self._integers("step"), self._integers("devices")
        none = np.iinfo(np.int64).min
        self.sequence, self.run_id = self._integers("sequence", none), self._integers("run_id", none)
        self.has_sequence, self.has_run = self.sequence != none, self.run_id != none
        self.code: dict[str, Int64] = {}
        self.texts: dict[str, list[str | None]] = {}
        """Text by code; that of -1, the last, is None."""
        for name in ("kind", "op", "source", "program", "groups"):
            self.code[name], self.texts[name] = self._texts(name)
        self.synchronising = np.array(
            [v for t in tables for v in t["synchronising"].to_pylist()] or np.zeros(0), np.bool_
        )
        self.group, self.expected = self._groups()
        # What executions that can be one collective have in common, whenever they ran.
        _, self.family = distinct(self.group, self.code["kind"], self.bytes, self.code["op"])
        self.step_key, self.step_number = self._step_keys()
        self.found = np.full(len(self.rank), -1, np.int64)
        self.method = np.full(len(self.rank), -1, np.int64)
        self.next = 0

    def _integers(self, name: str, null: int = -1) -> Int64:
        parts = [integers(p.table, name, null) for p in self.processes]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def _texts(self, name: str) -> tuple[Int64, list[str | None]]:
        """(codes in order of the texts, -1 for null; the texts): no text is made per execution."""
        parts = []
        for process in self.processes:
            column = process.table[name].combine_chunks()
            column = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
            parts.append((column.indices.fill_null(-1).to_numpy(zero_copy_only=False), column.dictionary.to_pylist()))
        texts: list[str | None] = [*sorted({text for _, own in parts for text in own}), None]
        place = {text: code for code, text in enumerate(texts[:-1])}
        codes = [np.array([*(place[text] for text in own), -1], np.int64)[indices] for indices, own in parts]
        return np.concatenate([np.empty(0, np.int64), *codes]), texts

    def _text(self, name: str, row: int) -> str | None:
        code: int = self.code[name][row]
        return self.texts[name][code]

    # --- who takes part -----------------------------------------------------------------------------------------------

    def _groups(self) -> tuple[Int64, Int64]:
        """Per execution the number of its group of ranks (-1: not known), and how many ranks are in it (-1)."""
        group = np.full(len(self.rank), -1, np.int64)
        expected = np.full(len(self.rank), -1, np.int64)
        known: dict[tuple[Any, ...], int] = {}
        unknown: Counter[str] = Counter()
        first, same = distinct(self.code["program"], self.code["groups"], self.devices)
        for number, row in enumerate(first.tolist()):
            mine = np.flatnonzero(same == number)
            program, groups = self._text("program", row), self._text("groups", row)
            running = np.unique(self.rank[self.code["program"] == self.code["program"][row]])
            devices = int(self.devices[row])
            if not groups:
                # All devices of the program together; without HLO (null) nothing more is known than that.
                group[mine] = known.setdefault((program,), len(known))
                expected[mine] = devices if groups is not None and devices > 0 else -1
                continue
            device_of = self._devices(running, devices)
            if device_of is None:
                for rank in np.unique(self.rank[mine]).tolist():
                    unknown[self.ranks[rank].host] += int((self.rank[mine] == rank).sum())
                continue
            for members in ([int(i) for i in text.split(",")] for text in groups.split("|")):
                inside = mine[np.isin(device_of[self.rank[mine]], members)]
                group[inside] = known.setdefault((program, tuple(members)), len(known))
                expected[inside] = len(members)
        for host, count in sorted(unknown.items()):
            self._note(
                "warning",
                "collective_group_unknown",
                host,
                count,
                "collectives of several groups, and which ranks are in which is not known: they are not matched",
            )
        return group, expected

    def _devices(self, running: Int64, devices: int) -> Int64 | None:
        """Device number per rank (-1: none): its place among the ranks that run the program, if those are all there
        are, else its place in the job, if process indices tell it; None where neither is known."""
        out = np.full(len(self.ranks), -1, np.int64)
        if len(running) == devices:
            out[running] = np.arange(devices)
            return out
        indices = [p.process_index for p in self.processes]
        lanes = {p.lanes for p in self.processes}
        if None in indices or len(lanes) != 1:
            return None
        (many,) = lanes
        for number, rank in enumerate(self.ranks):
            out[number] = (indices[rank.process] or 0) * many + rank.lane
        return out

    def _step_keys(self) -> tuple[Int64, Int64]:
        """Per execution a number for its step, equal across processes; between steps that of the last one begun. And
        one for its name and number alone: occurrences are counted from the beginning of each capture."""
        key = np.full(len(self.rank), -1, np.int64)
        named = np.full(len(self.rank), -1, np.int64)
        known: dict[tuple[Any, ...], int] = {}
        numbers: dict[tuple[Any, ...], int] = {}
        for number, process in enumerate(self.processes):
            mine = np.flatnonzero(self.process == number)
            if "inferred" in process.steps["source"].to_pylist()[:1]:
                # Counted from the beginning of each capture: no anchor.
                continue
            columns = (process.steps[name].to_pylist() for name in ("name", "number", "occurrence"))
            names = list(zip(*columns, strict=True))
            without = np.array([numbers.setdefault(k[:2], len(numbers)) for k in names] or np.zeros(0), np.int64)
            codes = np.array([known.setdefault(key, 2 * len(known)) for key in names] or np.zeros(0), np.int64)
            has = self.step[mine] >= 0
            named[mine] = np.where(has, without[self.step[mine]] if len(without) else -1, -1)
            of_row = np.where(has, codes[self.step[mine]] if len(codes) else -1, -1)
            # Rows are in order of (lane, start): the last step before, on the same lane.
            last = np.maximum.accumulate(np.where(has, np.arange(len(mine)), -1)) if len(mine) else mine
            same_lane = self.rank[mine[np.maximum(last, 0)]] == self.rank[mine]
            before = np.where((last >= 0) & same_lane, of_row[np.maximum(last, 0)] + 1, -1)
            key[mine] = np.where(has, of_row, before)
        return key, named

    # --- keys ---------------------------------------------------------------------------------------------------------

    def run(self) -> Collectives:
        todo = (self.group >= 0) & ~self._written_twice()
        by_sequence = np.flatnonzero(todo & self.has_sequence)
        self._by_key(by_sequence, METHODS.index("sequence"), (self.group, self.sequence))
        by_run = np.flatnonzero(todo & self.has_run & ~self.has_sequence)
        by_run = by_run[self._run_ids_agree(by_run)]
        self._by_key(by_run, METHODS.index("run_id"), (self.group, self.run_id, self.code["op"], self.code["kind"]))
        by_order = np.flatnonzero(todo & (self.method < 0))
        self._by_key(by_order, METHODS.index("order"), (self.group, self.step_key, self.family))
        return self._collectives()

    def _written_twice(self) -> Bool:
        """Executions of one rank that are equal to an earlier one, to the nanosecond: it cannot have run both."""
        same = (self.rank, self.start, self.end, self.group, self.code["kind"], self.code["op"], self.bytes)
        first, of = distinct(*same)
        again = np.arange(len(of)) != first[of]
        again &= ~self.has_sequence
        for rank, count in sorted(Counter(self.rank[again].tolist()).items()):
            why = "an execution stands twice in its trace, equal in all: the first counts"
            self._note("warning", "collective_repeated", self.ranks[rank].host, count, why)
        return np.asarray(again)

    def _run_ids_agree(self, rows: Int64) -> Bool:
        """Whether a row's run id means the same on the other ranks of its group.

        It does for a rank that shares one with another, if what they share is not mostly of different steps.
        """
        if not len(rows):
            return np.zeros(0, np.bool_)
        _, key = distinct(self.group[rows], self.run_id[rows], self.code["op"][rows], self.place[rows])
        rank_pairs, _ = distinct(key, self.rank[rows])
        shared = np.bincount(key[rank_pairs], minlength=int(key.max()) + 1)[key] >= 2
        order = np.argsort(key, kind="stable")
        steps, ordered = self.step_number[rows[order]], key[order]
        next_same = (ordered[1:] == ordered[:-1]) & (steps[1:] >= 0) & (steps[:-1] >= 0)
        of_pair = self.group[rows[order][1:]]
        differs = next_same & (steps[1:] != steps[:-1])
        groups = int(self.group.max()) + 1
        pairs = np.bincount(of_pair[next_same], minlength=groups)
        broken = np.bincount(of_pair[differs], minlength=groups)
        consistent = 10 * broken <= pairs
        by_rank = np.zeros((groups, len(self.ranks)), np.bool_)
        by_rank[self.group[rows[shared]], self.rank[rows[shared]]] = True
        return np.asarray(by_rank[self.group[rows], self.rank[rows]] & consistent[self.group[rows]])

    def _by_key(self, rows: Int64, method: int, keys: tuple[Int64, ...]) -> None:
        """Rows of one key are one collective where every rank has one of it; else their order within the key
        decides."""
        if not len(rows):
            return
        self.method[rows] = method
        _, bucket = distinct(*(key[rows] for key in keys))
        _, pair = distinct(bucket, self.rank[rows])
        many = np.bincount(pair)[pair]
        # Where a rank has several elsewhere, two that have one each may have lost the other's.
        most = np.zeros(int(self.family[rows].max()) + 1, np.int64)
        np.maximum.at(most, self.family[rows], many)
        single = (many == 1) & (most[self.family[rows]] == 1)
        plain = np.ones(int(bucket.max()) + 1, np.bool_)
        np.logical_and.at(plain, bucket, single)
        number = np.cumsum(plain) - 1
        mine = plain[bucket]
        self.found[rows[mine]] = self.next + number[bucket[mine]]
        self.next += int(plain.sum())
        rest = rows[~mine]
        order = np.lexsort((self.start[rest], self.rank[rest], bucket[~mine]))
        rest, of = rest[order], bucket[~mine][order]
        if method == METHODS.index("sequence"):
            for part in np.split(rest, np.flatnonzero(np.diff(of)) + 1) if len(rest) else []:
                self._repeated(part)
        else:
            self._in_order(rest, of)

    def _in_order(self, rows: Int64, key: Int64) -> None:
        """Executions of which a rank has several in one key: order.py says which belong together."""
        known = np.flatnonzero(self.found >= 0)
        shared = Shared(self.found[known], self.rank[known], self.end[known])
        ordered = put_in_order(key, self.family[rows], self.rank[rows], self.end[rows], shared)
        self.found[rows] = self.next + ordered.number
        self.next += int(ordered.number.max(initial=-1)) + 1
        why = "of equal collectives some were lost, and times do not tell which: what may be several is not matched"
        for rank, count in sorted(Counter(self.rank[rows[ordered.doubtful]].tolist()).items()):
            self._note("warning", "collectives_doubtful", self.ranks[rank].host, count, why)

    def _repeated(self, rows: Int64) -> None:
        """One rank has a number of its group twice: an event that was written twice. The first counts."""
        new = np.concatenate(([True], np.diff(self.rank[rows]) != 0))
        self.found[rows[new]] = self.next
        self.next += 1
        for row in rows[~new].tolist():
            host = self.ranks[int(self.rank[row])].host
            why = "a collective's number comes twice on one rank: the first counts"
            self._note("warning", "collective_repeated", host, 1, why)

    # --- the result ---------------------------------------------------------------------------------------------------

    def _collectives(self) -> Collectives:
        rows = np.flatnonzero(self.found >= 0)
        begin = np.full(self.next, np.iinfo(np.int64).max)
        np.minimum.at(begin, self.found[rows], self.start[rows])
        first_row = np.full(self.next, len(self.rank), np.int64)
        np.minimum.at(first_row, self.found[rows], rows)
        order = np.lexsort((first_row, begin))
        order = order[first_row[order] < len(self.rank)]
        place = np.full(self.next, -1, np.int64)
        place[order] = np.arange(len(order))
        of = place[self.found[rows]]
        rows = rows[np.lexsort((self.rank[rows], of))]
        of = place[self.found[rows]]
        speaks = first_row[order]
        seen = np.bincount(of, minlength=len(order))
        synchronising = np.zeros(len(order), np.bool_)
        if len(rows):
            # One asynchronous participant makes it one that does not tell.
            synchronising = np.logical_and.reduceat(
                self.synchronising[rows], np.searchsorted(of, np.arange(len(order)))
            )
        self._note_missing(of, rows, speaks)
        return Collectives(
            ranks=self.ranks,
            clocks=self.clocks,
            kind=[self._text("kind", row) or "" for row in speaks.tolist()],
            source=[self._text("source", row) or "" for row in speaks.tolist()],
            op=[self._text("op", row) or "" for row in speaks.tolist()],
            bytes=self.bytes[speaks],
            expected=self.expected[speaks],
            method=self.method[speaks],
            synchronising=synchronising & (seen >= 2),
            of=of,
            rank=self.rank[rows],
            row=self.row[rows],
            start_ns=self.start[rows],
            end_ns=self.end[rows],
            waits_from_ns=self.waits_from[rows],
            step=self.step[rows],
            diagnostics=self.diagnostics,
        )

    def _note_missing(self, of: Int64, rows: Int64, speaks: Int64) -> None:
        """Per rank how many collectives of its group it does not show between its first and its last, and before and
        behind those: one is loss, the other another capture. And ranks of which there is no trace."""
        lost: Counter[str] = Counter()
        outside: Counter[str] = Counter()
        absent: dict[int, int] = defaultdict(int)
        group = self.group[speaks]
        for number in np.unique(group).tolist():
            members = np.flatnonzero(group == number)
            inside = np.searchsorted(members, of)
            mine = (inside < len(members)) & (members[np.minimum(inside, len(members) - 1)] == of)
            here, rank = inside[mine], self.rank[rows[mine]]
            for one in np.unique(rank).tolist():
                seen = here[rank == one]
                within = int(seen.max() - seen.min() + 1) - len(seen)
                host = self.ranks[one].host
                lost[host] += within
                outside[host] += len(members) - int(seen.max() - seen.min() + 1)
            gone = int(self.expected[speaks[members[0]]]) - len(np.unique(rank))
            if gone > 0:
                absent[gone] += len(members)
        for host, count in sorted(lost.items()):
            if count:
                why = "collectives that other ranks of the group show while this one was being recorded"
                self._note("warning", "collectives_lost", host, count, why)
        for host, count in sorted(outside.items()):
            if count:
                why = "collectives of its group before its capture began or after it ended"
                self._note("note", "collectives_outside_capture", host, count, why)
        for gone, count in sorted(absent.items()):
            why = f"collectives with {gone} participant{'s' if gone > 1 else ''} of which there is no trace"
            self._note("warning", "collective_ranks_missing", "", count, why)

    def _note(self, severity: str, code: str, host: str, count: int, message: str) -> None:
        row = {"severity": severity, "code": code, "file": host, "place": "", "count": count, "message": message}
        self.diagnostics.append(row)
