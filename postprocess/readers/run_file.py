"""The run file of a process: what the capture itself says about what it recorded, and what it lost."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path
from typing import Any

import orjson

from xprof_py.errors import BadInputError
from xprof_py.postprocess.readers.sniff import read_bytes

_TABLES = ("versions", "capture", "collectors", "files", "overhead", "observer")
_NO_JAX = "no JAX"
"""Why XLA's profiler was not used in a program without it: nothing is missing then."""
_NOT_STARTED = "not started"
"""The same of a capture that did not get to its end, where it is told whether there was JAX."""
_UNENDED = ("armed", "recording", "stopping")


def read_run_file(path: Path) -> dict[str, Any]:
    """Read one run file. Raises BadInputError where it cannot be read or a field has another type than it should."""
    try:
        run = orjson.loads(memoryview(read_bytes(path)))
    except ValueError as error:
        raise BadInputError(str(path), "", f"is not JSON: {error}") from error
    if not isinstance(run, dict):
        raise BadInputError(str(path), "", "is not a JSON object")
    for name in _TABLES:
        if not isinstance(run.get(name) or {}, dict):
            raise BadInputError(str(path), name, "is not a JSON object")
    if not isinstance(run.get("messages") or [], list):
        raise BadInputError(str(path), "messages", "is not a JSON array")
    return run


def losses(
    run: dict[str, Any],
    file: str,
    *,
    there: Container[str],
    has_xspace: bool,
    shard_events: int | None,
    compiled: bool,
) -> list[dict[str, Any]]:
    """Rows of `diagnostics` for what the capture lost or what is no longer beside it.

    ``there``: which of xplane and shard is a file, whatever is in it. ``has_xspace``: one could be read.
    ``shard_events``: how many events could be read from the shard, None where it could not. ``compiled``: as for
    ``no_device_reason``.
    """
    rows: list[dict[str, Any]] = []

    def note(severity: str, code: str, message: str) -> None:
        row = {"severity": severity, "code": code, "file": file, "place": "", "count": 1, "message": message}
        rows.append(row)

    for message in run.get("messages") or []:
        if isinstance(message, dict) and message.get("severity") in ("warning", "error"):
            note(str(message["severity"]), "capture", str(message.get("message", "")))
    reason = _snapshot_reason(run.get("snapshot"))
    if reason:
        note("info", "snapshot", f"a snapshot of the flight recorder: {reason}")
    state = run.get("state")
    if state in ("recording", "stopping"):
        note("warning", "capture_not_ended", "the capture had not ended: it still runs, or the process was killed")
    files = run.get("files") or {}
    for name, what in (("xplane", "XLA's profile"), ("shard", "the shard")):
        if files.get(name) and name not in there:
            note("error", "file_missing", f"{what} is missing: {files[name]}")
    written = (run.get("overhead") or {}).get("recorder", {}).get("written")
    is_whole = state == "finished" and (run.get("capture") or {}).get("mode") != "flight_recorder"
    if is_whole and isinstance(written, int) and shard_events is not None and shard_events < written:
        lost = written - shard_events
        message = (
            f"{lost} of the {written} events that the recorder wrote are not in the shard any more: the steps that "
        )
        row = {"severity": "error", "code": "shard_incomplete", "file": file, "place": "", "count": lost}
        rows.append(
            {**row, "message": message + "they marked are missing, and what is said of the others may be wrong"}
        )
    why = no_device_reason(run, has_xspace=has_xspace, compiled=compiled)
    if why and not (files.get("xplane") and not has_xspace):
        note("error", "no_xla_profile", why)
    return rows


def _snapshot_reason(snapshot: object) -> str:
    """Why a flight recorder took this snapshot, "" where it is none."""
    about = snapshot.get("about") if isinstance(snapshot, dict) else None
    if not isinstance(about, dict):
        return ""
    reason = str(about.get("reason"))
    if reason == "slow step":
        took = f"took {about.get('duration_ms')} ms, the median of those before it is {about.get('median_ms')} ms"
        return f"step {about.get('step')} of {about.get('step_name')} {took}"
    if reason == "exception":
        return f"{about.get('exception')} left the block: {about.get('text')}"
    if reason == "signal":
        return "SIGUSR2"
    return f"{reason}: {about.get('text')}"


def no_device_reason(run: dict[str, Any], *, has_xspace: bool, compiled: bool) -> str:
    """Why nothing is known of the devices of this process, "" where something is or where it used none.

    ``compiled``: the shard holds what JAX compiled. A process that was killed did not get to say that it had no JAX:
    one whose devices never came up and that compiled nothing used none.
    """
    collectors = run.get("collectors") or {}
    xla, cuda = collectors.get("xla"), collectors.get("cuda")
    if isinstance(cuda, dict) and cuda.get("used"):
        return ""  # its shard holds what the GPUs did
    if has_xspace or not isinstance(xla, dict) or xla.get("why") == _NO_JAX:
        return ""
    unended = run.get("state") in _UNENDED
    if unended and xla.get("why") == _NOT_STARTED and not compiled:
        return ""
    if unended and (xla.get("used") or xla.get("why") == _NOT_STARTED):
        return (
            "no XLA profile: XLA gives it as the capture ends, and this one did not end. Let it end before the process "
            "does: capture(steps=(10, 20)) ends after step 19"
        )
    if xla.get("used"):
        return "no XLA profile: it was recorded, but it is not in the run folder"
    reason = xla.get("error") or xla.get("why") or "not recorded"
    return f"no XLA profile: {reason}"
