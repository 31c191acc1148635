"""A profile that is saved and loaded is the same profile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nsys_exports import Report, three_steps

import xprof_py
from xprof_py.errors import BadInputError, UsageError
from xprof_py.postprocess import schema
from xprof_py.postprocess.fleet.analysis import analyse
from xprof_py.postprocess.join import join_profile
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.readers.process import read_process
from xprof_py.postprocess.readers.sources import find_sources

DATA = Path(__file__).parent.parent / "data" / "jax_cpu"
CAPTURES = ("planted_input", "collectives_4dev", "mlp_async40")


def same(a: Profile, b: Profile) -> None:
    assert (a.host, a.origin_ns, a.capture_start_ps, a.capture_end_ps) == (
        b.host,
        b.origin_ns,
        b.capture_start_ps,
        b.capture_end_ps,
    )
    assert a.metadata == b.metadata
    assert set(a.tables) == set(b.tables)
    for name, table in a.tables.items():
        assert b[name].schema.equals(table.schema, check_metadata=True), name
        assert plain(b[name]).equals(plain(table)), name
        b[name].validate(full=True)


def plain(table: pa.Table) -> pa.Table:
    """Texts in place of dictionaries: one that holds a text twice comes back with it once."""
    kinds = [f.type.value_type if pa.types.is_dictionary(f.type) else f.type for f in table.schema]
    return table.cast(pa.schema([f.with_type(kind) for f, kind in zip(table.schema, kinds, strict=True)]))


def values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_dictionary(kind):
        return values(kind.value_type)
    if pa.types.is_integer(kind):
        signed, bits = pa.types.is_signed_integer(kind), kind.bit_width
        return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else st.integers(0, 2**bits - 1)
    if pa.types.is_boolean(kind):
        return st.booleans()
    if pa.types.is_floating(kind):
        return st.floats(allow_nan=False)
    if pa.types.is_list(kind):
        return st.lists(values(kind.value_type), max_size=3)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return st.binary(max_size=20)
    return st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@st.composite
def tables(draw: st.DrawFn) -> dict[str, pa.Table]:
    out = {}
    for name in draw(st.sets(st.sampled_from(sorted(schema.TABLES)), max_size=4)):
        count = draw(st.integers(0, 6))
        columns = {}
        for field in schema.TABLES[name]:
            one = values(field.type)
            if field.nullable:
                one = st.none() | one
            columns[field.name] = draw(st.lists(one, min_size=count, max_size=count))
        out[name] = schema.table(name, columns)
    return out


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(tables(), st.dictionaries(st.text(max_size=6), JSON, max_size=4), st.integers(-(2**63), 2**63 - 1))
@settings(max_examples=60, deadline=None)
def test_any_profile_is_the_same_after_it_was_saved(
    tmp_path_factory: pytest.TempPathFactory, found: dict[str, pa.Table], metadata: dict[str, Any], time: int
) -> None:
    folder = tmp_path_factory.mktemp("saved") / "a=b"
    before = Profile("hóst", time, -3, time, found, metadata)
    before.save(folder)
    same(before, Profile.load(folder))


@pytest.mark.parametrize("name", CAPTURES)
@pytest.mark.parametrize("joined", [False, True])
def test_a_recorded_profile_is_the_same_after_it_was_saved(tmp_path: Path, name: str, joined: bool) -> None:
    before = read_process(find_sources([DATA / f"{name}.xplane.pb.gz"]).processes[0])
    before = join_profile(before) if joined else before
    before.save(tmp_path / "saved")
    same(before, Profile.load(tmp_path / "saved"))


def test_a_dictionary_larger_than_parquets_default_and_in_many_chunks_comes_back(tmp_path: Path) -> None:
    names = [f"{'x' * 200} {i}" for i in range(30_000)]
    whole = schema.table(
        "events",
        {
            "line": [0] * 30_000,
            "name": names,
            "kind": [0] * 30_000,
            "start_ps": range(30_000),
            "duration_ps": [1] * 30_000,
        },
    )
    parts = pa.concat_tables([whole.slice(20_000), whole.slice(0, 20_000)])
    Profile("h", 0, 0, 1, {"events": parts}).save(tmp_path / "saved")
    after = Profile.load(tmp_path / "saved")["events"]
    assert plain(after).equals(plain(parts))
    assert after["name"].num_chunks == 1


def analysed(path: Path) -> str:
    """The summary without what names the files."""
    found = xprof_py.load(path).summary()
    for host in found["hosts"]:
        del host["source"]
    return json.dumps(found, sort_keys=True)


@pytest.mark.parametrize("name", CAPTURES)
def test_its_analysis_is_the_same(tmp_path: Path, name: str) -> None:
    file = DATA / f"{name}.xplane.pb.gz"
    read_process(find_sources([file]).processes[0]).save(tmp_path / "saved")
    for path in (tmp_path / "saved", tmp_path / "saved" / "profile.json", tmp_path, tmp_path / "sav*"):
        assert analysed(path) == analysed(file)


def test_the_processes_of_a_job_lie_side_by_side(tmp_path: Path) -> None:
    report = three_steps(Report(process=144))
    report.process, report._correlation = 145, 0
    file = three_steps(report).written(tmp_path / "both.sqlite")
    for source in find_sources([file]).processes:
        read_process(source).save(tmp_path / "job" / source.key)
    assert analysed(tmp_path / "job") == analysed(file)


def test_nothing_is_overwritten_and_a_failure_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile = Profile("h", 0, 0, 1, {"lines": schema.empty("lines")})
    profile.save(tmp_path / "a")
    with pytest.raises(UsageError, match="exists"):
        profile.save(tmp_path / "a")
    wrong = {"lines": schema.empty("events")}
    with pytest.raises(ValueError, match="table lines does not have the schema"):
        Profile("h", 0, 0, 1, wrong).save(tmp_path / "b")
    for bad in ({"x": (1, 2)}, {"x": {1: 2}}, {"x": [object()]}):
        with pytest.raises(ValueError, match=r"metadata\['x'\]"):
            Profile("h", 0, 0, 1, {}, bad).save(tmp_path / "b")

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pyarrow.parquet.write_table", full)
    with pytest.raises(OSError, match="No space"):
        profile.save(tmp_path / "b")
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_what_is_broken_is_named(tmp_path: Path) -> None:
    folder = Profile("h", 0, 0, 1, {"lines": schema.empty("lines")}).save(tmp_path / "a")
    said = (folder / "profile.json").read_text()
    whole = (folder / "lines.parquet").read_bytes()
    (folder / "lines.parquet").write_bytes(whole[:-9])
    with pytest.raises(BadInputError, match=r"lines\.parquet: is not what was saved"):
        Profile.load(folder)
    (folder / "lines.parquet").unlink()
    with pytest.raises(BadInputError, match=r"lines\.parquet: No such file"):
        analyse([folder])
    for text, why in (
        (said.replace('version": 1', 'version": 99'), "has schema version 99"),
        (said[:40], "is no JSON"),
        ("{}", "is not that of a saved profile"),
        (said.replace('"host"', '"hos"'), "is not what was saved: KeyError"),
        (said.replace('"lines"', '"lanterns"'), "no table that this version knows"),
    ):
        (folder / "lines.parquet").write_bytes(whole)
        (folder / "profile.json").write_text(text)
        with pytest.raises(BadInputError, match=why):
            Profile.load(folder)
    with pytest.raises(BadInputError, match="No such file"):
        Profile.load(tmp_path / "nowhere")
