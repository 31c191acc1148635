"""The class of a GPU kernel or copy by its name, and of a TPU op by its text and category: where no HLO tells it.

Copies go by what they say of their direction; a copy kernel of ROCm (`__amd_rocclr_copyBuffer`) says none, the call
that launched it does. Kernels of communication libraries are collectives whatever op they are billed to.
"""

from __future__ import annotations

import re

from xprof_py.postprocess.hlo.classes import COLLECTIVES, class_of

_TO_OR_FROM_HOST = re.compile(r"mem_?cpy.*?(h(ost)?to?d|d(evice)?to?h|h2d|d2h)|copy(hosttodevice|devicetohost)", re.I)
_BETWEEN_DEVICES = re.compile(r"mem_?cpy.*?(p(eer)?to?p|p2p|peer)|copypeer", re.I)
_COPY = re.compile(r"mem_?cpy|^Copy(Host|Device|Peer)|__amd_rocclr_copy|^hipMemcpy|^cuMemcpy", re.I)
_FILL = re.compile(r"^mem_?set|__amd_rocclr_fill|^FillBuffer|^(cu|hip)Memset", re.I)
_LIBRARY = re.compile(r"nccl|rccl|nvshmem|rocshmem|msccl", re.I)
_COLLECTIVE_KERNEL = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|collective_?(permute|broadcast)|cross_device_reduce", re.I
)
_OF_LIBRARY = re.compile(
    r"^_Z|::|^(sm|ampere|volta|turing|hopper|maxwell)\d*_|cublas|cudnn|cutlass|xmma|nvjet|gemm(?!_fusion)|gemv|"
    r"split_?k|cusolver|fmha|flash|sdpa|winograd|implicit_conv|cijk_|\bcub\b",
    re.I,
)
"""Kernels of cuBLAS, cuDNN, cuSOLVER, CUTLASS, CUB and their like; names of C++, which XLA's own kernels have not."""
_INSTRUCTION = re.compile(r"^%?(?P<name>[^\s=]+) = ")
_OPCODE = re.compile(r" (?P<opcode>[a-z][a-z0-9\-]*)\(")
_HOST_SPACE = "S(5)"
"""XLA's text of the host's memory space in a layout."""
_KERNEL_LAUNCH = r"launch_?(cooperative)?_?(kernel|graph)|graphlaunch"
LAUNCH_CALL = re.compile(rf"({_KERNEL_LAUNCH}|memcpy|memset)", re.I)
"""Driver calls that start work on a device."""
KERNEL_LAUNCH = re.compile(rf"(cu|cuda|hip)(?=[A-Z])\w*?(?i:{_KERNEL_LAUNCH})")
"""Those that start kernels and graphs: they wait for the device only where its queue is full."""
COPY_CALL = re.compile(r"memcpy|memset", re.I)
"""Those that start copies and fills, and may wait for the device."""


def is_copy(name: str) -> bool:
    """Whether a device event is a copy or fill by its name: its direction may be told elsewhere."""
    return bool(_COPY.search(name) or _FILL.search(name))


def is_library(name: str) -> bool:
    """Whether a kernel is one of a library by its name; XLA's own are named after instructions."""
    return bool(_OF_LIBRARY.search(name))


def class_of_copy(name: str, launched_by: str) -> str | None:
    """The class of a copy or fill, None where neither its name nor the call that launched it says the direction.

    ``launched_by``: the name of the host's call, "" without.
    """
    if _FILL.search(name):
        return "memory"
    for said in (name, launched_by):
        if _BETWEEN_DEVICES.search(said):
            return "collective"
        if _TO_OR_FROM_HOST.search(said):
            return "host_device"
        if re.search(r"dtod|d2d|devicetodevice", said, re.I):
            return "memory"
    return None


def class_of_kernel(name: str, opcode: str) -> str:
    """The class of a kernel; ``opcode``: of the HLO instruction it belongs to, "" where none is known."""
    if _LIBRARY.search(name):
        return "collective"
    if opcode:
        return class_of(opcode)
    return "collective" if _COLLECTIVE_KERNEL.search(name) else "compute"


def instruction_name(text: str) -> str:
    """The instruction's name in an op's HLO text (``%fusion.3 = f32[8] fusion(...)``), or the text itself."""
    found = _INSTRUCTION.match(text)
    return found["name"] if found else text.removeprefix("%")


def class_of_op_text(text: str, category: str) -> str:
    """The class of a TPU op whose HLO is not in the profile; ``category``: XLA's `hlo_category`, "" without."""
    head = _INSTRUCTION.match(text)
    found = _OPCODE.search(text, head.end() - 1) if head else None
    opcode = found["opcode"] if found else re.sub(r"\.\d+$", "", instruction_name(text))
    if opcode.startswith("copy") and _HOST_SPACE in text:
        return "host_device"
    by_category = class_of_category(category)
    return by_category if by_category is not None else class_of(opcode)


def class_of_category(category: str) -> str | None:
    """What XLA's `hlo_category` says beyond the opcode: transfers with the host, collectives fused with others."""
    if category.startswith("host "):
        return "host_device"
    stem = category.removesuffix(" fusion").removesuffix("-start").removesuffix("-done")
    return "collective" if stem in COLLECTIVES else None
