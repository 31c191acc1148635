"""Collectives, clocks, the straggler and the job's tables are the same, whoever made the partials and in what order."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conformance.job_text import read_job
from conformance.profile_tables import ORIGIN_NS
from xprof_py.cli.analyze import analyze
from xprof_py.postprocess.fleet import passes
from xprof_py.postprocess.fleet.analysis import Analysis, analyse, partials, read_analysis, reduce_partials
from xprof_py.postprocess.fleet.run_job import analyse_job
from xprof_py.postprocess.fleet.schedulers import InProcess
from xprof_py.postprocess.fleet.spool import Spool
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.readers.sources import Source, Sources

DATA = Path(__file__).parent.parent / "data" / "jax_cpu"
JOBS = sorted((Path(__file__).parent.parent / "conformance" / "jobs").glob("*.job"))
OF_THE_JOB = {
    "collectives",
    "participants",
    "clock_map",
    "job_breakdown",
    "job_steps",
    "stragglers",
    "straggler_reasons",
    "job_replay",
    "rank_programs",
}


def assert_same(found: Analysis, expected: Analysis) -> None:
    assert found.summary == orjson.loads(orjson.dumps(expected.summary))
    assert found.tables.keys() == expected.tables.keys()
    for name, table in expected.tables.items():
        assert found.tables[name].to_pylist() == table.to_pylist(), name


@pytest.mark.parametrize("workers", [1, 2])
def test_recorded_collectives_of_several_processes(tmp_path: Path, workers: int) -> None:
    files = [tmp_path / f"{name}.xplane.pb.gz" for name in "abc"]
    for file in files:
        shutil.copy(DATA / "collectives_4dev.xplane.pb.gz", file)
    expected = analyse(files)
    assert set(expected.tables) >= {"collectives", "participants", "clock_map"}
    analyze(files[::-1], tmp_path / "out", workers=workers, resume=True)
    assert_same(read_analysis(tmp_path / "out"), expected)
    # Again, with all that pass 1 left.
    analyze(files, tmp_path / "out", workers=workers, resume=True)
    assert_same(read_analysis(tmp_path / "out"), expected)


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("one_name", [False, True])
@pytest.mark.parametrize("file", JOBS, ids=lambda file: file.stem)
def test_jobs_worked_out_by_hand(
    file: Path, one_name: bool, backwards: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the one clock that they share, which is known then; with one name for all hosts as well."""
    profiles = {f"key{number}": on_one_clock(p) for number, p in enumerate(read_job(file).profiles())}
    monkeypatch.setattr(passes, "read_process", lambda source, workers: named(profiles[source.key], one_name))
    sources = [Source(key, tmp_path / key) for key in profiles]
    for key in profiles:
        (tmp_path / key).write_text(key)
    several = len(profiles) > 1
    hosts = {key: (f"vm:{key}" if several else "vm") if one_name else profile.host for key, profile in profiles.items()}
    whole = [partials(with_host(profile, hosts[key], [str(tmp_path / key)])) for key, profile in profiles.items()]
    expected = reduce_partials(whole[::-1], [])
    assert set(expected.tables) >= OF_THE_JOB
    spool = Spool(tmp_path / "partials")
    found = analyse_job(Sources(sources[::-1] if backwards else sources, None), spool, InProcess())
    tables = {
        **found.tables,
        **{name: pa.concat_tables(map(pq.read_table, files)) for name, files in found.partitions.items()},
    }
    assert_same(replace(found, summary=orjson.loads(orjson.dumps(found.summary)), tables=tables), expected)


def named(profile: Profile, one_name: bool) -> Profile:
    return replace(profile, host="vm") if one_name else profile


def with_host(profile: Profile, host: str, source: list[str]) -> Profile:
    return replace(profile, host=host, metadata={**profile.metadata, "source": source})


def on_one_clock(profile: Profile) -> Profile:
    run = {**profile.metadata["run"], "clock_domain": "boot"}
    return replace(profile, origin_ns=ORIGIN_NS, metadata={**profile.metadata, "run": run})
