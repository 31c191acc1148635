"""Results behind URLs are those of a folder, and an upload that ends in between is seen by nobody."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from xprof_py.cli import main
from xprof_py.cli.analyze import analyze, analyze_to_url
from xprof_py.errors import UsageError, XprofPyError

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed: the extra `test` brings it")

RECORDED = Path(__file__).parent.parent / "data" / "jax_cpu"
URL = "memory://bucket/out"


@pytest.fixture
def bucket() -> Iterator[Any]:
    files = fsspec.filesystem("memory")
    yield files
    if files.exists("/bucket"):
        files.rm("/bucket", recursive=True)


@pytest.fixture
def two(tmp_path: Path) -> Path:
    folder = tmp_path / "profiles"
    folder.mkdir()
    for name in ("planted_input", "planted_compute"):
        shutil.copy(RECORDED / f"{name}.xplane.pb.gz", folder)
    return folder


def stored(files: Any, at: str = "/bucket/out") -> dict[str, bytes]:
    return {name.removeprefix(f"{at}/"): files.cat_file(name) for name in files.find(at)}


def local(folder: Path) -> dict[str, bytes]:
    return {f.relative_to(folder).as_posix(): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


def test_the_analysis_at_a_url_has_the_bytes_of_one_in_a_folder(bucket: Any, two: Path, tmp_path: Path) -> None:
    analyze([two], tmp_path / "out")
    assert main(["analyze", str(two), "-o", URL]) == 0
    assert stored(bucket) == local(tmp_path / "out")
    assert any(name.startswith("gaps.parquet/") for name in stored(bucket))


def test_an_analysis_takes_the_place_of_the_one_before_and_leaves_other_files(
    bucket: Any, two: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    analyze_to_url([two], URL)
    bucket.pipe_file("/bucket/out/notes.txt", b"mine")
    one = RECORDED / "planted_input.xplane.pb.gz"
    analyze([one], tmp_path / "one")
    capsys.readouterr()
    assert main(["analyze", str(one), "-o", URL, "--json"]) == 0
    assert capsys.readouterr().out == (tmp_path / "one" / "summary.json").read_text()
    # gaps.parquet was a folder of two processes.
    assert stored(bucket) == {**local(tmp_path / "one"), "notes.txt": b"mine"}


def test_what_is_no_analysis_is_not_written_to(bucket: Any, two: Path) -> None:
    bucket.pipe_file("/bucket/out/events.parquet", b"somebody's")
    assert main(["analyze", str(two), "-o", URL]) == 2
    assert stored(bucket) == {"events.parquet": b"somebody's"}
    assert main(["analyze", str(two), "-o", "memory://bucket/new", "--resume"]) == 2
    with pytest.raises(UsageError, match="is a URL"):
        analyze([two], URL)


def test_an_upload_that_fails_leaves_no_summary_and_the_next_one_is_whole(
    bucket: Any, two: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    analyze_to_url([two], URL)
    expected = stored(bucket)
    kind = type(bucket)
    put, done = kind.put_file, [0]

    def failing(self: Any, *arguments: Any, **options: Any) -> Any:
        done[0] += 1
        if done[0] == 4:
            raise OSError("no route to host")
        return put(self, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(kind, "put_file", failing)
        with pytest.raises(XprofPyError, match=r"memory://bucket/out: OSError: no route to host"):
            analyze_to_url([two], URL)
    assert "summary.json" not in stored(bucket)
    analyze_to_url([two], URL)
    assert stored(bucket) == expected


def test_a_store_of_runs_at_a_url(bucket: Any, two: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "root"
    for name in ("r1", "r2"):
        (root / "job" / name).mkdir(parents=True)
        shutil.copy(RECORDED / "planted_input.xplane.pb.gz", root / "job" / name)
    url, place = "memory://bucket/store", "/bucket/store"
    assert main(["fleet", "report", url]) == 1
    assert f"{url}: no such folder" in capsys.readouterr().err
    assert main(["fleet", "analyze", str(root), "-o", url]) == 0
    assert main(["fleet", "analyze", str(root), "-o", str(tmp_path / "store")]) == 0
    capsys.readouterr()
    assert main(["fleet", "report", url, "--json"]) == 0
    said = capsys.readouterr().out
    assert main(["fleet", "report", str(tmp_path / "store"), "--json"]) == 0
    assert said == capsys.readouterr().out
    assert len(stored(bucket, place)) == 2
    assert main(["fleet", "compact", url]) == 0
    assert [name.split("/")[1] for name in stored(bucket, place)] == ["together-000001.parquet"]
    # Again one of them: it replaces itself.
    shutil.rmtree(root / "job" / "r2")
    assert main(["fleet", "analyze", str(root), "-o", url]) == 0
    capsys.readouterr()
    assert main(["fleet", "report", url, "--json"]) == 0
    assert said == capsys.readouterr().out
    bucket.pipe_file(f"{place}/thesis.txt", b"mine")
    assert main(["fleet", "analyze", str(root), "-o", url]) == 2
