"""A recording as if its program had marked no step."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from xprof_py.postprocess import schema
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.schema import Kind


def without_steps(profile: Profile) -> Profile:
    """The same recording as if no step had been marked: the steps' spans are spans, XLA's markers are events."""
    kind = profile["events"]["kind"]
    plain = pc.if_else(pc.equal(kind, int(Kind.STEP)), pa.scalar(int(Kind.SPAN), pa.uint8()), kind)
    events = profile["events"].set_column(2, schema.TABLES["events"].field("kind"), plain)
    args = profile["args"]
    return replace(
        profile,
        tables={**profile.tables, "events": events, "args": args.filter(pc.not_equal(args["key"], "step_num"))},
    )
