"""What the ranges say that XLA opens around the work of a GPU: op, module and program.

XLA names them `Thunk:#name=blk1/dot_general,hlo_op=gemm_fusion_dot.1#` and
`XlaModule:#prefix=jit(f)/jit(main),hlo_module=jit_f,program_id=1#` (xla/backends/gpu/runtime/annotation.cc). Versions
differ in what stands beside the op: `name` is absent where the op has none, newer ones add `unique_hlo_op_id`, and a
name may itself hold commas and equal signs. An instruction's name never does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_RANGE = re.compile(r"^(?P<kind>[A-Za-z]+):#(?P<fields>.*?)#?$", re.DOTALL)
_OP = re.compile(r"(?:^|,)hlo_op=([\w.\-%]+)(?=,|$)")
_MODULE = re.compile(r"(?:^|,)hlo_module=([^,#]+)(?=,|$)")
_PROGRAM = re.compile(r"(?:^|,)program_id=(\d+)(?=,|$)")


@dataclass(frozen=True)
class XlaRange:
    """What one range's text says; "" and None where it does not."""

    hlo_op: str = ""
    hlo_module: str = ""
    program_id: int | None = None


def xla_range(text: str) -> XlaRange:
    """Reads a range's text; that of a range of another kind says nothing."""
    found = _RANGE.match(text)
    if found is None:
        return XlaRange()
    fields = found["fields"]
    # The last one counts: what stands before it may be part of `name`, which is the program's own text.
    op, module, program = (pattern.findall(fields) for pattern in (_OP, _MODULE, _PROGRAM))
    number = int(program[-1]) if program else None
    if number is not None and number >= 2**63:
        # As in the other readers: the bits of an id, which XLA counts without a sign.
        number = number - 2**64 if number < 2**64 else None
    return XlaRange(
        op[-1].removeprefix("%") if op and found["kind"] == "Thunk" else "", module[-1] if module else "", number
    )
