"""Bad input to the commands: a message that names file and place on stderr, exit code 1, no traceback."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

DATA = Path(__file__).parent.parent / "data" / "jax_cpu"
GOOD = DATA / "planted_compute.xplane.pb.gz"
REAL_TRACES = Path(os.environ.get("XPROF_PY_REAL_TRACES", Path(__file__).parents[2].parent / "shared" / "traces"))


def command(*args: str | Path, memory_bytes: int = 0) -> subprocess.CompletedProcess[str]:
    # The limit is set by a shell: code of ours between fork and exec would run what JAX does at a fork, if another test
    # has imported it here.
    limited = ["sh", "-c", f'ulimit -v {memory_bytes >> 10}; exec "$@"', "sh"] if memory_bytes else []
    return subprocess.run(
        [*limited, sys.executable, "-m", "xprof_py", *map(str, args)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def fails(result: subprocess.CompletedProcess[str], *said: str) -> None:
    assert result.returncode == 1, result
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    for text in said:
        assert text in result.stderr, result.stderr


def test_a_missing_path(tmp_path: Path) -> None:
    fails(command("analyze", tmp_path / "nowhere"), "nowhere: no such file or folder")


def test_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "host.xplane.pb").write_bytes(b"")
    fails(command("analyze", tmp_path / "host.xplane.pb"), "host.xplane.pb: is empty")


def test_a_truncated_file(tmp_path: Path) -> None:
    content = gzip.decompress(GOOD.read_bytes())
    (tmp_path / "host.xplane.pb").write_bytes(content[: len(content) * 2 // 3])
    fails(command("analyze", tmp_path / "host.xplane.pb"), "host.xplane.pb: planes[", "byte ")


def test_a_truncated_gzip_file(tmp_path: Path) -> None:
    (tmp_path / "host.xplane.pb.gz").write_bytes(GOOD.read_bytes()[:1000])
    fails(command("analyze", tmp_path / "host.xplane.pb.gz"), "host.xplane.pb.gz: gzip")


def test_a_text_file(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("step 1 took 3 ms\n" * 100)
    fails(command("analyze", tmp_path / "notes.txt"), "notes.txt", "is not an XSpace")


def test_a_folder_without_profiles(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing")
    fails(command("analyze", tmp_path), "no profile in this folder")


def test_an_absurd_length_prefix_allocates_nothing(tmp_path: Path) -> None:
    # Field 1 (planes) with the length 10,000,000 and 2^60 in a file of a few bytes.
    for number, length in enumerate((b"\x80\xad\xe2\x04", b"\x80\x80\x80\x80\x80\x80\x80\x80\x10")):
        file = tmp_path / f"host{number}.xplane.pb"
        file.write_bytes(b"\x0a" + length + b"\x12\x03abc")
        fails(command("analyze", file, memory_bytes=4 << 30), file.name, "byte ")


def test_a_folder_that_mixes_jobs_lists_them(tmp_path: Path) -> None:
    for job in ("a", "b"):
        (tmp_path / job).mkdir()
        (tmp_path / job / "host.xplane.pb.gz").write_bytes(GOOD.read_bytes())
    fails(command("analyze", tmp_path), "several jobs", f"{tmp_path / 'a'}", f"{tmp_path / 'b'}")


def test_a_bad_file_costs_itself_alone(tmp_path: Path) -> None:
    (tmp_path / "good.xplane.pb.gz").write_bytes(GOOD.read_bytes())
    (tmp_path / "bad.xplane.pb").write_bytes(b"\x0a\xff\x01")
    out = tmp_path / "out"
    result = command("analyze", tmp_path, "-o", out)
    assert result.returncode == 0, result.stderr
    assert "bad.xplane.pb" in (out / "summary.json").read_text()


def test_a_pipe_or_a_device_is_refused_at_once(tmp_path: Path) -> None:
    for name in ("0.xplane.pb", "0-1.xpr"):
        os.mkfifo(tmp_path / name)
        fails(command("analyze", tmp_path / name), f"{name}: is not a regular file")
    fails(command("analyze", tmp_path), "is not a regular file")
    fails(command("analyze", "/dev/zero", memory_bytes=4 << 30), "/dev/zero: is not a regular file")


def test_pipes_in_a_run_folder_cost_themselves_alone(tmp_path: Path) -> None:
    run = tmp_path / "r"
    for name in ("run/0-1.json", "shards/0-1.xpr"):
        (run / name).parent.mkdir(parents=True)
        os.mkfifo(run / name)
    (run / "plugins" / "profile" / "run").mkdir(parents=True)
    (run / "plugins" / "profile" / "run" / "0.xplane.pb.gz").write_bytes(GOOD.read_bytes())
    result = command("analyze", run)
    assert result.returncode == 0, result.stderr
    diagnostics = json.loads((run / "analysis" / "summary.json").read_bytes())["diagnostics"]
    refused = {row["file"] for row in diagnostics if row["message"] == "is not a regular file"}
    assert refused == {f"{run}/run/0-1.json", f"{run}/shards/0-1.xpr"}


@pytest.mark.parametrize(
    "arguments",
    [("analyze", ""), ("analyze", GOOD, ""), ("report", ""), ("analyze", GOOD, "-o", ""), ("demo", "--run-dir", "")],
)
def test_an_empty_path_is_wrong_usage(arguments: tuple[str | Path, ...]) -> None:
    result = command(*arguments)
    assert result.returncode == 2
    assert "an empty path (is a variable not set?)" in result.stderr


@pytest.mark.parametrize("steps", ["0", "-3", "many"])
def test_a_demo_of_no_steps_is_wrong_usage(steps: str) -> None:
    result = command("demo", f"--steps={steps}")
    assert result.returncode == 2
    assert f"argument --steps: '{steps}': wants a whole number, at least 1" in result.stderr


def test_a_demo_whose_analysis_has_no_place_does_not_train(tmp_path: Path) -> None:
    (tmp_path / "analysis").mkdir()
    (tmp_path / "analysis" / "thesis.tex").write_text("years of work")
    result = command("demo", "--run-dir", tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith(f"xprof-py: {tmp_path / 'analysis'} exists and is not an analysis")
    assert [f.name for f in tmp_path.iterdir()] == ["analysis"]


def test_nothing_else_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("years of work")
    result = command("analyze", GOOD, "-o", tmp_path / "out")
    assert result.returncode == 2
    assert "is not an analysis" in result.stderr
    assert [f.name for f in (tmp_path / "out").iterdir()] == ["thesis.tex"]


def test_an_unknown_command_is_a_usage_error() -> None:
    assert command("analyse").returncode == 2


def test_analyzing_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        assert command("analyze", GOOD, "-o", tmp_path / name).returncode == 0
    for file in sorted((tmp_path / "one").iterdir()):
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes(), file.name


@pytest.mark.real_traces
def test_a_file_damaged_by_a_text_conversion() -> None:
    file = REAL_TRACES / "xspace" / "tpu_inference_2_corrupt_utf8" / "tpu_inference_2.xplane.pb"
    if not file.exists():
        pytest.skip(f"{file} is not there: set XPROF_PY_REAL_TRACES to the folder of real traces")
    fails(command("analyze", file), "tpu_inference_2.xplane.pb", "byte ")
