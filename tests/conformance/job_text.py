"""Cases of several hosts (README.md, "A job"): each host is a case of its own, with a clock; the answers are the
job's."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from conformance.case_text import UNIT_PS, Case, CaseError, parse_case
from conformance.profile_tables import ORIGIN_NS, profile_of
from xprof_py.postprocess.clocks.curve import Curve, Piece
from xprof_py.postprocess.profile import Profile


@dataclass(frozen=True)
class CaseClock:
    """theta of a host: ``offset_ns`` at ORIGIN_NS of the reference, growing by ``drift_ppm``, known to ``error_ns``."""

    offset_ns: int
    error_ns: int
    drift_ppm: int = 0
    origin_ns: int = ORIGIN_NS

    def curve(self) -> Curve:
        """theta by the host's own time: straight over any capture of a case."""
        knots = np.array([-1e5, 1e5])
        rate = self.drift_ppm * 1e-6
        value = (knots - self.offset_ns / 1e9) * rate / (1 + rate) * 1e9
        piece = Piece(*knots.tolist(), knots, value, value - self.error_ns, value + self.error_ns, 1, 0.0)
        return Curve(self.origin_ns, self.offset_ns, (piece,))


@dataclass
class Job:
    """``hosts``: name -> (its case, its clock; None: not known). Expectations in picoseconds.

    ``lanes``: host -> class -> exclusive in job view, over its step windows. ``steps``: (name, number, occurrence) ->
    time. ``collectives``: (kind, last host or None, late by, transfer), in order of time. ``stragglers``: host ->
    (lost, cause). ``reasons``: (late host, class, reason) -> how much more it did, in all steps. ``without``:
    what is removed -> the mean step.
    """

    title: str = ""
    hosts: dict[str, tuple[Case, CaseClock | None]] = field(default_factory=dict)
    lanes: dict[str, dict[str, int]] = field(default_factory=dict)
    steps: dict[tuple[str, int, int], int] = field(default_factory=dict)
    collectives: list[tuple[str, str | None, int | None, int | None]] | None = None
    stragglers: dict[str, tuple[int, str]] | None = None
    reasons: dict[tuple[str, str, str], int] | None = None
    without: dict[str, int] = field(default_factory=dict)

    def profiles(self) -> list[Profile]:
        """What the readers deliver of every host, on its own clock. Times in the text are the fleet's."""
        out = []
        for index, (name, (case, clock)) in enumerate(self.hosts.items()):
            profile = profile_of(case, "shard")
            lines = profile["lines"]
            domain = pa.array([f"boot-of-{name}"] * lines.num_rows)
            lines = lines.set_column(
                lines.schema.get_field_index("clock_domain"), lines.schema.field("clock_domain"), domain
            )
            moved = replace(
                profile,
                host=name,
                origin_ns=ORIGIN_NS + (clock.offset_ns if clock is not None else 5_000_000),
                metadata={**profile.metadata, "run": {"process_index": index, "hostname": name}},
            )
            out.append(moved.with_tables(lines=lines))
        return out

    def clocks(self) -> list[Curve | None]:
        """theta per host; the first one is the reference."""
        return [clock.curve() if clock is not None else None for _, clock in self.hosts.values()]


def read_job(path: Path) -> Job:
    """The job in the file ``path``. Raises CaseError naming the line."""
    return parse_job(path.read_text(encoding="utf-8"), path.name)


def parse_job(text: str, source: str) -> Job:
    """The job written in ``text``. Lines before the first host are of every host."""
    blocks: list[list[str]] = [[]]
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        if line.startswith(("host ", "expect ")):
            blocks.append([])
        blocks[-1].append(line)
    shared = "\n".join(blocks[0])
    job = Job(title=shared.partition("title:")[2].splitlines()[0].strip())
    unit_ps = next((UNIT_PS[line.split()[1]] for line in blocks[0] if line.startswith("unit ")), UNIT_PS["ms"])
    for block in blocks[1:]:
        words = block[0].split()
        if words[0] == "host":
            # host NAME [clock OFFSET [known ERROR] | clock ?]
            known = dict(zip(words[2::2], words[3::2], strict=True))
            clock = None
            if known.get("clock") != "?":
                offset, error = (int(known.get(name, 0)) * unit_ps // 1000 for name in ("clock", "known"))
                clock = CaseClock(offset, error)
            body = "\n".join(line[2:] for line in block[1:])
            job.hosts[words[1]] = (parse_case(f"{shared}\n{body}\n", f"{source}: {words[1]}"), clock)
        else:
            _expect(job, words[1:], [line.split("#")[0] for line in block[1:]], unit_ps, source)
    return job


def _expect(job: Job, words: list[str], lines: list[str], unit_ps: int, source: str) -> None:
    rows = [line.split() for line in lines if line.strip()]

    def time(word: str) -> int | None:
        return None if word == "?" else int(word) * unit_ps

    if words[0] == "lane":
        amounts = " ".join(w for row in rows for w in row).split(",")
        job.lanes[words[1]] = {name: int(ps) * unit_ps for name, ps in (a.split() for a in amounts)}
    elif words[0] == "steps":
        job.steps = {("train", int(number), 0): int(ps) * unit_ps for number, ps in rows}
    elif words[0] == "collectives":
        # KIND last HOST by TIME transfer TIME
        job.collectives = [(r[0], None if r[2] == "?" else r[2], time(r[4]), time(r[6])) for r in rows]
    elif words[0] == "stragglers":
        # HOST lost TIME cause CLASS
        job.stragglers = {r[0]: (int(r[2]) * unit_ps, r[4]) for r in rows}
    elif words[0] == "reasons":
        # HOST CLASS TIME REASON
        job.reasons = {(r[0], r[1], " ".join(r[3:])): int(r[2]) * unit_ps for r in rows}
    elif words[0] == "without":
        job.without = {name: int(ps) * unit_ps for name, ps in rows}
    else:
        raise CaseError(f"{source}: expect lane, steps, collectives, stragglers, reasons or without, not {words[0]!r}")
