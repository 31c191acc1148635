"""Jobs of made-up hosts that meet in collectives: in every step host 1 comes a tenth of it late.

Written in the language of the conformance cases, so that what is true of it can be read there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from conformance.case_text import parse_case
from conformance.profile_tables import ORIGIN_NS, profile_of
from xprof_py.postprocess.fleet import passes, run_job
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.readers.sources import Source, Sources

STEP_US, LATE_US, LAUNCH_US = 100_000, 10_000, 100


def host_text(late_us: int, steps: int, collectives: int) -> Iterator[str]:
    """One host that comes ``late_us`` late to the first collective of every step."""
    yield "title: made up\nunit us\nprogram f at train.py:10"
    for number in range(collectives):
        yield f"  dot.{number} = dot()\n  all-reduce.{number} = all-reduce(dot.{number})"
    yield f"capture 0..{(steps + 1) * STEP_US}\nthread main"
    for step in range(steps):
        at = step * STEP_US
        yield f"  step {step} {at}..{at + STEP_US}\n    launch f {at}..{at + LAUNCH_US}"
    yield "lane 0"
    length = (STEP_US - LATE_US - 2 * LAUNCH_US) // collectives
    for step in range(steps):
        yield f"  run f {step}"
        at = step * STEP_US + LAUNCH_US
        for number in range(collectives):
            # All leave a collective together, a quarter of its share of the step after the last has come.
            leaves = at + LATE_US + (number + 1) * length
            comes = leaves - length // 4 - (0 if number else LATE_US - late_us)
            begins = leaves - length if number else at
            yield f"    dot.{number} {begins}..{comes}\n    all-reduce.{number} {comes}..{leaves}"


def make_job(folder: Path, hosts: int, steps: int, collectives: int) -> Sources:
    """Pass 1 of the hosts, as workers would have left it in ``folder``/spool: to be gone on from."""
    texts = ("\n".join(host_text(late, steps, collectives)) for late in (0, LATE_US))
    punctual, late = (profile_of(parse_case(text, "made up"), "shard") for text in texts)

    def made_up(source: Source, workers: object) -> Profile:
        number = int(source.key)
        profile = late if number == 1 else punctual
        lines = profile["lines"]
        at = lines.schema.get_field_index("clock_domain")
        lines = lines.set_column(at, lines.schema.field(at), pa.array([f"boot-{number}"] * lines.num_rows))
        run = {"process_index": number, "hostname": f"h{number:04}"}
        metadata = {**profile.metadata, "run": run}
        moved = replace(profile, host=f"h{number:04}", origin_ns=ORIGIN_NS + number * 1000, metadata=metadata)
        return moved.with_tables(lines=lines)

    sources = [Source(f"{number:04}", folder / f"{number:04}.xplane.pb") for number in range(hosts)]
    (folder / "spool").mkdir(parents=True)
    reader, passes.read_process = passes.read_process, made_up
    try:
        for source in sources:
            source.paths()[0].touch()
            run_job.map_1(folder / "spool", source, False)
    finally:
        passes.read_process = reader
    return Sources(sources, None)
