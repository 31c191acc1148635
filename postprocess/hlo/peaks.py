"""What a device can do at most: operations per second by element type, bytes per second of memory and network.

Where the numbers come from, the first that there is: XPROF_PY_PEAKS; the profile's own statement; the public figures
below; for CPUs a measurement on the machine that was profiled (hlo/cpu_peaks.py). Where there is none there are no
peaks: a roof is never guessed.

XPROF_PY_PEAKS is a JSON object, or the path of a file with one: the fields of ``Peaks`` (flops_per_s by type,
vector_flops_per_s, memory_bytes_per_s, network_bytes_per_s), for all devices, or such objects by the beginnings of
device names (``{"cpu": {...}, "/device:GPU": {...}}``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from xprof_py.errors import UsageError
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.schema import ArgKind

VARIABLE = "XPROF_PY_PEAKS"
PS_PER_S = 10**12


@dataclass(frozen=True)
class Peaks:
    """``flops_per_s``: of matmuls, by element type (f32, tf32, bf16, f8, s8, ...); ``vector_flops_per_s``: of all else.

    ``memory_bytes_per_s``: reads and writes together. ``network_bytes_per_s``: sent by one device to its peers on the
    links between devices of a machine or pod. None: not known. ``device`` and ``source`` say of what, and who says so.
    """

    device: str
    source: str
    flops_per_s: Mapping[str, int] = field(default_factory=dict)
    vector_flops_per_s: int | None = None
    memory_bytes_per_s: int | None = None
    network_bytes_per_s: int | None = None

    def matmul_flops_per_s(self, type_name: str) -> int | None:
        """The rate of matmuls in a type of hlo/flops.py; None where it is not known.

        A type without a rate of its own has that of the unit which takes it: f8 of every kind is one; c64 and c128 are
        computed as f32 and f64; "f32_default" runs as tf32 where there is that, as bf16 on TPUs, else as f32.
        """
        order: tuple[str, ...]
        if type_name == "f32_default":
            order = ("tf32", "bf16") if self.device.startswith("TPU") else ("tf32", "f32")
        elif type_name.startswith("f8"):
            order = ("f8",)
        else:
            order = {"c64": ("f32",), "c128": ("f64",), "u8": ("s8",)}.get(type_name, (type_name,))
        return next((self.flops_per_s[name] for name in order if name in self.flops_per_s), None)

    def document(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "device": self.device,
            "source": self.source,
            "flops_per_s": dict(sorted(self.flops_per_s.items())),
            "vector_flops_per_s": self.vector_flops_per_s,
            "memory_bytes_per_s": self.memory_bytes_per_s,
            "network_bytes_per_s": self.network_bytes_per_s,
        }


def from_document(found: Mapping[str, Any], *, device: str = "", source: str = "") -> Peaks:
    """Peaks from what ``document`` returns or a user wrote; raises ValueError for anything else."""
    known = ("device", "source", "flops_per_s", "vector_flops_per_s", "memory_bytes_per_s", "network_bytes_per_s")
    unknown = sorted(set(found) - set(known))
    if unknown:
        raise ValueError(f"has no field {unknown[0]!r}; there are {', '.join(known[2:])}")
    flops = found.get("flops_per_s") or {}
    if not isinstance(flops, Mapping):
        raise ValueError("flops_per_s is not an object of rates by type")
    rates = {name: _rate(name, value) for name, value in flops.items()}
    return Peaks(
        str(found.get("device") or device),
        source or str(found.get("source", "")),
        {name: rate for name, rate in rates.items() if rate is not None},
        *(_rate(name, found.get(name)) for name in known[3:]),
    )


def _rate(name: str, value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 2**63:
        raise ValueError(f"{name} is {value!r}, not a positive number per second")
    return int(value)


def _public(
    device: str,
    flops_t: Mapping[str, float],
    *,
    vector_t: float | None = None,
    memory_g: float,
    network_g: float | None = None,
) -> Peaks:
    """``flops_t`` and ``vector_t`` in 1e12 operations per second, ``memory_g`` and ``network_g`` in 1e9 bytes."""
    return Peaks(
        device,
        "public figures",
        {name: round(rate * 1e12) for name, rate in flops_t.items()},
        None if vector_t is None else round(vector_t * 1e12),
        round(memory_g * 1e9),
        None if network_g is None else round(network_g * 1e9),
    )


_HOPPER = {"f64": 67, "f32": 67, "tf32": 494.7, "f16": 989.4, "bf16": 989.4, "f8": 1978.9, "s8": 1978.9}
_AMPERE = {"f64": 19.5, "f32": 19.5, "tf32": 156, "f16": 312, "bf16": 312, "s8": 624}

# Dense rates, without sparsity. Networks: one direction of all links. A page that rounds differently from the vendor's
# own sheet is not taken.
PUBLIC: tuple[Peaks, ...] = (
    # NVIDIA V100 data sheet (SXM2): 7.8, 15.7, 125 TFLOPS; 900 GB/s; NVLink 300 GB/s both ways.
    _public("V100", {"f64": 7.8, "f32": 15.7, "f16": 125}, vector_t=15.7, memory_g=900, network_g=150),
    # NVIDIA A100 data sheet: FP64 tensor core 19.5, TF32 156, BF16 312, INT8 624; NVLink 600 GB/s both ways. Memory by
    # board: SXM 1555 (40 GB) and 2039 (80 GB), PCIe 1555 and 1935; a PCIe board has NVLink only where it is bridged.
    _public("A100 40GB", _AMPERE, vector_t=19.5, memory_g=1555, network_g=300),
    _public("A100 80GB", _AMPERE, vector_t=19.5, memory_g=2039, network_g=300),
    _public("A100 80GB PCIe", _AMPERE, vector_t=19.5, memory_g=1935),
    # NVIDIA H100 data sheet, SXM column, halved for sparsity (the white paper has the further digit): FP64 tensor core
    # 67, TF32 494.7, BF16 989.4, FP8 1978.9; 3.35 TB/s; NVLink 900 GB/s both ways.
    _public("H100 SXM", _HOPPER, vector_t=67, memory_g=3350, network_g=450),
    # NVIDIA H100 PCIe product brief: FP64 tensor core 51.2, TF32 378, BF16 756, FP8 1513; 2 TB/s.
    _public(
        "H100 PCIe",
        {"f64": 51.2, "f32": 51.2, "tf32": 378, "f16": 756, "bf16": 756, "f8": 1513, "s8": 1513},
        vector_t=51.2,
        memory_g=2000,
    ),
    # NVIDIA H200 data sheet (SXM): the rates of the H100 SXM; 4.8 TB/s.
    _public("H200", _HOPPER, vector_t=67, memory_g=4800, network_g=450),
    # NVIDIA Blackwell data sheet, HGX B200, of one GPU: FP64 37, FP32 75, TF32 2.2 P, BF16 4.5 P, FP8 and INT8 9 P,
    # those from TF32 on with sparsity; 7.7 TB/s; NVLink 1.8 TB/s both ways.
    _public(
        "B200",
        {"f64": 37, "f32": 75, "tf32": 1100, "f16": 2250, "bf16": 2250, "f8": 4500, "s8": 4500},
        vector_t=75,
        memory_g=7700,
        network_g=900,
    ),
    # AMD Instinct MI300X data sheet: FP64 matrix 163.4, FP32 163.4, TF32 653.7, BF16 1307.4, FP8 2614.9; 5.3 TB/s;
    # Infinity Fabric 896 GB/s both ways.
    _public(
        "MI300X",
        {"f64": 163.4, "f32": 163.4, "tf32": 653.7, "f16": 1307.4, "bf16": 1307.4, "f8": 2614.9, "s8": 2614.9},
        vector_t=163.4,
        memory_g=5300,
        network_g=448,
    ),
    # docs.cloud.google.com/tpu/docs, pages v4, v5e, v5p, v6e, per chip; interconnect as stated both ways, halved: 400
    # (v5e), 1200 (v5p), 800 (v6e) GB/s. v4 by the TPU v4 paper (Jouppi et al., ISCA 2023): 6 links of 50 GB/s; INT8 of
    # v5p by Google's announcement of it (December 2023). v5p and v6e state the rate of BF16 for FP8 too.
    _public("TPU v4", {"bf16": 275, "s8": 275}, memory_g=1200, network_g=300),
    _public("TPU v5e", {"bf16": 197, "s8": 393}, memory_g=819, network_g=200),
    _public("TPU v5p", {"bf16": 459, "f8": 459, "s8": 918}, memory_g=2765, network_g=600),
    _public("TPU v6e", {"bf16": 918, "f8": 918, "s8": 1836}, memory_g=1638, network_g=400),
)

_NAMES: tuple[tuple[str, str], ...] = (
    # Names that drivers, Kineto, Nsight Systems and XLA give; the first that matches.
    (r"\bV100", "V100"),
    (r"\bA100.*(?:80 ?GB.*PCIe|PCIe.*80 ?GB)", "A100 80GB PCIe"),
    (r"\bA100.*80 ?GB", "A100 80GB"),
    (r"\bA100.*40 ?GB", "A100 40GB"),
    (r"\bH100.*PCIe", "H100 PCIe"),
    (r"\bH100 80GB HBM3|\bH100.*SXM", "H100 SXM"),
    (r"\bH200(?!.*NVL)", "H200"),
    (r"\bB200\b", "B200"),
    (r"\bMI300X\b", "MI300X"),
    (r"^TPU v4$", "TPU v4"),
    (r"^TPU v5 ?(?:e|lite)$", "TPU v5e"),
    (r"^TPU v5p?$", "TPU v5p"),
    (r"^TPU v6 ?(?:e|lite)$", "TPU v6e"),
)

_GIB = 1 << 30


def public_peaks(name: str) -> Peaks | None:
    """Public figures of a device by the name that its driver or XLA gives it; None for one that is not listed."""
    for pattern, device in _NAMES:
        if re.search(pattern, name, re.IGNORECASE):
            return next(peaks for peaks in PUBLIC if peaks.device == device)
    return None


def _name_of_gpu(facts: Mapping[str, Any]) -> str:
    """XLA does not name a GPU: capability, number of cores and memory tell the models listed here apart."""
    capability = (facts.get("compute_cap_major"), facts.get("compute_cap_minor"))
    cores, memory = facts.get("core_count"), facts.get("memory_size")
    if not isinstance(memory, int):
        return ""
    if str(facts.get("device_vendor", "")).upper() == "AMD":
        return "MI300X" if (capability, cores) == ((9, 4), 304) and memory > 180 * _GIB else ""
    if (capability, cores) == ((7, 0), 80):
        return "V100"
    if (capability, cores) == ((8, 0), 108):
        return "A100 80GB" if memory > 60 * _GIB else "A100 40GB"
    if (capability, cores) == ((9, 0), 114):
        return "H100 PCIe"
    if (capability, cores) == ((9, 0), 132):
        # 94 GB is the H100 NVL, whose rates are others.
        return "H200" if memory > 120 * _GIB else "H100 SXM" if memory < 85 * _GIB else ""
    return "B200" if (capability, cores) == ((10, 0), 148) else ""


def device_peaks(facts: Mapping[str, Any]) -> Peaks | None:
    """Peaks of a device from the stats of its plane: its own statement, completed by public figures."""
    name = str(facts.get("device_type_string") or _name_of_gpu(facts))
    listed = public_peaks(name)
    flops, memory = facts.get("peak_teraflops_per_second"), facts.get("peak_hbm_bw_gigabytes_per_second")
    if not (isinstance(flops, float) and flops > 0) or not (isinstance(memory, float) and memory > 0):
        return listed
    found = listed or Peaks(name, "")
    return replace(
        found,
        source="the profile",
        # The statement is of bf16, the type of the matrix units.
        flops_per_s={**found.flops_per_s, "bf16": round(flops * 1e12)},
        memory_bytes_per_s=round(memory * 1e9),
    )


def plane_facts(profile: Profile, plane: str) -> dict[str, Any]:
    """The stats of a plane as Python values, later ones of a name winning."""
    facts: dict[str, Any] = {}
    for row in profile["plane_args"].to_pylist():
        if row["plane"] != plane:
            continue
        if row["kind"] == ArgKind.TEXT:
            facts[row["key"]] = row["text"]
        elif row["kind"] == ArgKind.DOUBLE:
            facts[row["key"]] = float(np.int64(row["value"]).view(np.float64))
        elif row["kind"] in (ArgKind.INT, ArgKind.UINT):
            facts[row["key"]] = row["value"]
    return facts


def stated_by_user(text: str) -> dict[str, Peaks]:
    """XPROF_PY_PEAKS as device name beginning -> peaks, "" for all devices; raises UsageError for what it is not."""
    if not text.strip():
        return {}
    try:
        content = text if text.lstrip().startswith("{") else Path(text).read_text(encoding="utf-8")
        found = orjson.loads(content)
        if not isinstance(found, dict):
            raise ValueError("is not a JSON object")
        by_device = (
            found
            if found and all(isinstance(v, dict) and k != "flops_per_s" for k, v in found.items())
            else {"": found}
        )
        return {
            beginning: from_document(stated, device=beginning, source=VARIABLE)
            for beginning, stated in by_device.items()
        }
    except (OSError, ValueError) as error:
        raise UsageError(f"{VARIABLE}: {error}") from error


def peaks_of(profile: Profile, device: str) -> Peaks | None:
    """The peaks of a lane's device that ``metadata["peaks"]`` holds: of its name, or of the longest beginning of it."""
    stated = profile.metadata.get("peaks") or {}
    matching = [beginning for beginning in stated if device.startswith(beginning)]
    return from_document(stated[max(matching, key=len)]) if matching else None


def ideal_ps(amount: int | None, per_s: int | None) -> int | None:
    """The least picoseconds for an amount at a rate, rounded up; None where either is not known."""
    if amount == 0:
        return 0
    if amount is None or per_s is None:
        return None
    return -(-amount * PS_PER_S // per_s)


def ideal_times_ps(cost: Mapping[str, Any], peaks: Peaks) -> tuple[int | None, int | None]:
    """(computing, moving bytes): the least picoseconds for a row of hlo_costs; each None where not known.

    Matmuls and other operations may overlap, so the longer of the two counts. Transcendentals have no stated rate.
    """
    matmul = ideal_ps(cost["matmul_flops"], peaks.matmul_flops_per_s(cost["matmul_type"]))
    other = None if cost["flops"] is None else cost["flops"] - cost["matmul_flops"]
    vector = ideal_ps(other, peaks.vector_flops_per_s)
    if cost["matmul_flops"] and peaks.vector_flops_per_s is None:
        vector = 0  # TPUs: no rate is stated for what a matmul is fused with
    known = cost["bytes_read"] is not None and cost["bytes_written"] is not None
    moved = cost["bytes_read"] + cost["bytes_written"] if known else None
    computing = None if matmul is None or vector is None else max(matmul, vector)
    return computing, ideal_ps(moved, peaks.memory_bytes_per_s)
