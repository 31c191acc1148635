"""Which peaks a profile's devices have, and who says so: `metadata["peaks"]`, device name -> Peaks as JSON values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from xprof_py.config import choice
from xprof_py.errors import UsageError
from xprof_py.postprocess import schema
from xprof_py.postprocess.hlo.cpu_peaks import cache_folder, cpu_peaks, profiled_here
from xprof_py.postprocess.hlo.peaks import (
    VARIABLE,
    Peaks,
    device_peaks,
    from_document,
    plane_facts,
    stated_by_user,
)
from xprof_py.postprocess.profile import Profile

CPU = "cpu"


def with_peaks(profile: Profile, environ: Mapping[str, str], *, calibrate: bool) -> Profile:
    """``profile`` with the peaks of its devices in its metadata, and a note where a CPU's were measured.

    ``calibrate``: whether a CPU may be measured now, if it is this machine's and no measurement is stored.
    XPROF_PY_CALIBRATE=off forbids it, and the use of stored measurements too. Raises UsageError where a variable is set
    and cannot be read.
    """
    found: dict[str, Peaks] = {}
    for plane in sorted(set(profile["plane_args"]["plane"].to_pylist())):
        if plane.startswith("/device:"):
            peaks = device_peaks(plane_facts(profile, plane))
            if peaks is not None:
                found[plane] = peaks
    stated = stated_by_user(environ.get(VARIABLE, ""))
    notes: list[dict[str, Any]] = []
    # A machine is measured only for work that ran on it.
    if (
        calibration_allowed(environ)
        and _has_cpu_ops(profile)
        and not any(CPU.startswith(beginning) for beginning in stated)
    ):
        measured = _of_cpu(profile, environ, calibrate=calibrate, notes=notes)
        if measured is not None:
            found[CPU] = measured
    documents = {name: peaks.document() for name, peaks in {**found, **_override(found, stated)}.items()}
    if notes:
        added = pa.Table.from_pylist(notes, schema=schema.TABLES["diagnostics"])
        profile = profile.with_tables(diagnostics=pa.concat_tables([profile["diagnostics"], added]))
    return replace(profile, metadata={**profile.metadata, "peaks": documents})


def calibration_allowed(environ: Mapping[str, str]) -> bool:
    """Whether a CPU may be measured, and measurements used. Raises UsageError where XPROF_PY_CALIBRATE is wrong."""
    try:
        return choice(environ.get("XPROF_PY_CALIBRATE") or "auto") is not False
    except ValueError as error:
        raise UsageError(f"XPROF_PY_CALIBRATE: {error}") from None


def _override(found: Mapping[str, Peaks], stated: Mapping[str, Peaks]) -> dict[str, Peaks]:
    """What the user states goes before what was found for the same devices; "" is the beginning of every name."""
    out = dict(stated)
    for name in found:
        matching = [beginning for beginning in stated if name.startswith(beginning)]
        if matching:
            out[name] = replace(stated[max(matching, key=len)], device=name)
    return out


def _has_cpu_ops(profile: Profile) -> bool:
    """Whether host events carry the HLO op that they executed: the ops of JAX's CPU devices.

    Beside a GPU or TPU they are no lane, and the calls that launch a GPU's kernels carry the op too.
    """
    if any(plane.startswith(("/device:GPU:", "/device:TPU:")) for plane in profile["lines"]["plane"].to_pylist()):
        return False
    for chunk in profile["args"]["key"].chunks:
        code = chunk.dictionary.index("hlo_op").as_py()
        # In the column's own type: for another one Arrow would copy the whole column first.
        if code >= 0 and pc.any(pc.equal(chunk.indices, pa.scalar(code, chunk.indices.type))).as_py():
            return True
    return False


def _of_cpu(
    profile: Profile, environ: Mapping[str, str], *, calibrate: bool, notes: list[dict[str, Any]]
) -> Peaks | None:
    run = profile.metadata.get("run") or {}
    recorded = run.get("cpu_peaks")
    if isinstance(recorded, dict):
        try:
            return from_document(recorded, source="the run file")
        except ValueError as error:
            notes.append(_note(profile, "warning", f"the run file's cpu_peaks cannot be used: {error}"))
    if not profiled_here(run):
        return None
    measured = cpu_peaks(cache_folder(environ), measure=calibrate)
    if measured is not None:
        rate = (measured.flops_per_s.get("f32") or 0) / 1e9
        text = (
            f"the CPU's peaks were measured on this machine, which is the one that was profiled ({measured.device}): "
            f"{rate:.0f} GFLOP/s in f32, {(measured.memory_bytes_per_s or 0) / 1e9:.1f} GB/s"
        )
        notes.append(_note(profile, "note", text))
    return measured


def _note(profile: Profile, severity: str, message: str) -> dict[str, Any]:
    return {
        "severity": severity,
        "code": "cpu_peaks",
        "file": profile.host,
        "place": "",
        "count": 1,
        "message": message,
    }
