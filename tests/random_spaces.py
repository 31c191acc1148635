"""Random XSpaces for hypothesis, as the fields of messages: of every kind of metadata, stat and odd value."""

from __future__ import annotations

from hypothesis import strategies as st

I64 = st.integers(-(2**63), 2**63 - 1)
U64 = st.integers(0, 2**64 - 1)
# Small ids, so that metadata is found, missing and given twice, and large ones for the sparse side of the id map.
IDS = st.one_of(st.integers(0, 6), st.sampled_from([-1, 2**40, -(2**63), 2**63 - 1]))
TEXT = st.text(max_size=12)

STATS = st.fixed_dictionaries(
    {"metadata_id": IDS},
    optional={
        "one": st.one_of(
            st.tuples(st.just("double_value"), st.floats()),
            st.tuples(st.just("uint64_value"), U64),
            st.tuples(st.just("int64_value"), I64),
            st.tuples(st.just("str_value"), TEXT),
            st.tuples(st.just("bytes_value"), st.binary(max_size=9)),
            st.tuples(st.just("ref_value"), st.integers(0, 8)),
        )
    },
).map(lambda stat: {k: v for k, v in stat.items() if k != "one"} | dict([stat["one"]] if "one" in stat else []))
EVENTS = st.fixed_dictionaries(
    {"metadata_id": IDS, "duration_ps": I64, "stats": st.lists(STATS, max_size=3)},
    optional={"one": st.tuples(st.sampled_from(["offset_ps", "num_occurrences"]), I64)},
).map(lambda event: {k: v for k, v in event.items() if k != "one"} | dict([event["one"]] if "one" in event else []))
LINES = st.fixed_dictionaries(
    {
        "id": I64,
        "name": TEXT,
        "display_name": TEXT,
        "timestamp_ns": I64,
        "duration_ps": I64,
        "display_id": I64,
        "events": st.lists(EVENTS, max_size=4),
    }
)
PLANES = st.fixed_dictionaries(
    {
        "id": I64,
        "name": TEXT,
        "lines": st.lists(LINES, max_size=3),
        "event_metadata": st.dictionaries(
            IDS,
            st.fixed_dictionaries({"name": TEXT, "display_name": TEXT, "stats": st.lists(STATS, max_size=2)}),
            max_size=4,
        ),
        "stat_metadata": st.dictionaries(IDS, st.fixed_dictionaries({"name": TEXT}), max_size=5),
        "stats": st.lists(STATS, max_size=3),
    }
)
SPACES = st.fixed_dictionaries(
    {
        "planes": st.lists(PLANES, max_size=3),
        "hostnames": st.lists(TEXT, max_size=2),
        "errors": st.lists(TEXT, max_size=2),
        "warnings": st.lists(TEXT, max_size=2),
    }
)
