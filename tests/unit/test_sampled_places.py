"""What a sampled stack says: the cause that its frames name, and the place that is shown for it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.case_text import parse_case
from conformance.profile_tables import profile_of
from xprof_py.collectors import gc_pauses
from xprof_py.postprocess import schema
from xprof_py.postprocess.analyses.evidence import partial as evidence_of_gaps
from xprof_py.postprocess.join import join_profile
from xprof_py.postprocess.join.host_names import Evidence, frame_cause
from xprof_py.postprocess.join.samples import Samples, Stacks, is_users
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.schema import Kind


def profile(*stacks: list[tuple[str, int, str]], samples: list[tuple[int, bool, int | None]] = ()) -> Profile:  # type: ignore[assignment]
    """``stacks``: (file, line, function), innermost first; ``samples``: (time_ps, at work, stack) of line 0."""
    frames: dict[tuple[str, int, str], int] = {}
    rows = [
        (stack, depth, frames.setdefault(frame, len(frames)))
        for stack, members in enumerate(stacks)
        for depth, frame in enumerate(members)
    ]

    def table(name: str, found: list[tuple[Any, ...]]) -> Any:
        names = schema.TABLES[name].names
        return schema.table(name, {key: [row[i] for row in found] for i, key in enumerate(names)})

    return Profile("host0", 0, 0, 100).with_tables(
        stacks=table("stacks", rows),
        frames=table("frames", [(file, function, line) for file, line, function in frames]),
        stack_samples=table("stack_samples", [(0, time_ps, 0, 0, on, stack) for time_ps, on, stack in samples]),
    )


def test_the_place_is_the_users_innermost_frame() -> None:
    stacks = Stacks(
        profile(
            [
                ("/usr/lib/python3.11/json/decoder.py", 3, "JSONDecoder.decode"),
                ("/venv/lib/python3.11/site-packages/numpy/core.py", 9, "load"),
                ("/home/me/data/crops.py", 41, "make.<locals>.Crops.cut"),
                ("/home/me/train.py", 7, "main"),
            ],
            [("<frozen importlib._bootstrap>", 1, "_find"), ("/usr/lib/python3.11/importlib/__init__.py", 2, "load")],
            [],
        )
    )
    place = stacks.place(0)
    assert place is not None
    assert (place.text, place.source) == ("crops.py:41 Crops.cut", "/home/me/data/crops.py:41")
    outside = stacks.place(1)
    assert outside is not None
    assert outside.text == "<frozen importlib._bootstrap>:1 _find"
    assert stacks.place(2) is None


@pytest.mark.parametrize(
    ("file", "users"),
    [
        ("/home/me/xprof_py/train.py", True),
        ("/srv/lib/loader.py", True),
        ("train.py", True),
        ("/venv/lib/python3.12/site-packages/torch/nn/linear.py", False),
        ("/usr/lib/python3/dist-packages/yaml/reader.py", False),
        ("/usr/lib/python3.11/queue.py", False),
        ("/src/jax/jax/_src/pjit.py", False),
        ("/src/xprof_py/xprof_py/inputs.py", False),
        ("/src/xprof_py/xprof_py/collectors/stacks.py", False),
        ("<string>", False),
    ],
)
def test_files_of_others_are_known_by_their_path(file: str, users: bool) -> None:
    assert is_users(file) is users


@pytest.mark.parametrize(
    ("file", "function", "cause"),
    [
        ("train.py", "load_batch", Evidence.INPUT),
        ("train.py", "Trainer.load_batch", Evidence.INPUT),
        ("train.py", "main.<locals>.get_batch", Evidence.INPUT),
        ("train.py", "DataLoader.__next__", Evidence.INPUT),
        ("train.py", "DataLoader.close", Evidence.NOTHING),
        ("train.py", "train_on_batch", Evidence.NOTHING),
        ("train.py", "__next__", Evidence.NOTHING),
        ("train.py", "save_checkpoint", Evidence.CHECKPOINT),
        ("/v/torch/utils/data/dataloader.py", "_MultiProcessingDataLoaderIter._try_get_data", Evidence.INPUT),
        ("/v/grain/_src/python/data_loader.py", "DataLoader.__iter__", Evidence.INPUT),
        ("/v/tensorflow/python/data/ops/iterator_ops.py", "OwnedIterator._next_internal", Evidence.INPUT),
        ("/v/xprof_py/inputs.py", "_TimedIterator.__next__", Evidence.INPUT),
        ("/v/orbax/checkpoint/_src/handlers/x.py", "wait", Evidence.CHECKPOINT),
        ("/v/torch/serialization.py", "_save", Evidence.CHECKPOINT),
        ("/v/torchdata/nodes/base_node.py", "BaseNode.__next__", Evidence.INPUT),
        ("/v/torch_xla/distributed/parallel_loader.py", "PerDeviceLoader.__next__", Evidence.INPUT),
        (
            "/v/grain/_src/python/dataset/transformations/prefetch.py",
            "PrefetchDatasetIterator.__next__",
            Evidence.INPUT,
        ),
        ("/v/datasets/iterable_dataset.py", "IterableDataset.__iter__", Evidence.INPUT),
        ("/v/datasets/arrow_dataset.py", "Dataset.__getitem__", Evidence.INPUT),
        ("/home/me/datasets/crops.py", "cut", Evidence.NOTHING),
        ("/v/webdataset/pipeline.py", "DataPipeline.iterator", Evidence.INPUT),
        ("/v/ffcv/loader/epoch_iterator.py", "EpochIterator.__next__", Evidence.INPUT),
        ("/v/streaming/base/dataset.py", "StreamingDataset.__iter__", Evidence.INPUT),
        ("/v/litdata/streaming/dataset.py", "StreamingDataset.__next__", Evidence.INPUT),
        ("/v/squirrel/iterstream/base.py", "Composable.__iter__", Evidence.INPUT),
        ("/v/seqio/dataset_providers.py", "Mixture.get_dataset", Evidence.INPUT),
        ("/v/seqio/evaluation.py", "Evaluator.evaluate", Evidence.NOTHING),
        ("/v/flax/jax_utils.py", "prefetch_to_device", Evidence.INPUT),
        ("/v/flax/jax_utils.py", "prefetch_to_device.<locals>.enqueue", Evidence.INPUT),
        ("/v/flax/jax_utils.py", "replicate", Evidence.NOTHING),
        ("/v/orbax/checkpoint/checkpoint_manager.py", "CheckpointManager.save", Evidence.CHECKPOINT),
        ("/v/flax/training/checkpoints.py", "save_checkpoint_multiprocess", Evidence.CHECKPOINT),
        ("/v/flax/serialization.py", "msgpack_serialize", Evidence.CHECKPOINT),
        ("/v/flax/serialization.py", "register_serialization_state", Evidence.NOTHING),
        ("/v/torch/distributed/checkpoint/state_dict_saver.py", "save", Evidence.CHECKPOINT),
        ("/v/jax/experimental/array_serialization/serialization.py", "run", Evidence.CHECKPOINT),
        ("/v/safetensors/flax.py", "save_file", Evidence.CHECKPOINT),
        ("/v/equinox/_serialisation.py", "tree_serialise_leaves", Evidence.CHECKPOINT),
        ("/v/numpy/lib/_npyio_impl.py", "save", Evidence.CHECKPOINT),
        ("/v/numpy/lib/npyio.py", "savez_compressed", Evidence.CHECKPOINT),
        ("/v/numpy/lib/_npyio_impl.py", "load", Evidence.NOTHING),
        ("/v/jax/_src/stages.py", "load_inputs", Evidence.NOTHING),
        ("/v/my_grain/python.py", "run", Evidence.NOTHING),
    ],
)
def test_frames_name_causes(file: str, function: str, cause: Evidence) -> None:
    assert frame_cause(file, function) is cause


def test_the_outermost_name_decides() -> None:
    read, save = ("a.py", 1, "read_data"), ("a.py", 2, "save_checkpoint")
    stacks = Stacks(profile([read, save], [save, read], [("a.py", 3, "f")]))
    assert [stacks.cause(i) for i in range(3)] == [Evidence.CHECKPOINT, Evidence.INPUT, Evidence.NOTHING]


@settings(deadline=None)
@given(st.lists(st.integers(0, 99), max_size=12), st.integers(0, 99), st.integers(0, 99))
def test_a_stretch_is_tiled_by_its_samples_or_left_alone(times: list[int], one: int, other: int) -> None:
    times, start, end = sorted(times), min(one, other), max(one, other)
    samples = Samples(
        profile([("a.py", 1, "f")], [("b.py", 1, "g")], samples=[(t, t % 3 > 0, t % 2) for t in times]),
        np.zeros(1, np.int64),
    )
    pieces = samples.divide(0, start, end)
    inside = [t for t in times if start <= t < end]
    if not inside:
        assert pieces == []
        return
    edges = [start, *(piece[1] for piece in pieces)]
    assert [piece[0] for piece in pieces] == edges[:-1]
    assert edges[-1] == end
    assert all(a < b for a, b in pairwise(edges))
    # Every moment is spoken for by a nearest sample of its own stretch.
    for begin, finish, evidence, stack in pieces:
        for moment in range(begin, finish):
            nearest = min(abs(2 * t - 2 * moment - 1) for t in inside)
            says = {
                (Evidence.HOST if t % 3 else Evidence.NOTHING, t % 2)
                for t in inside
                if abs(2 * t - 2 * moment - 1) <= nearest + 1
            }
            assert (evidence, stack) in says


def test_the_sdk_and_the_schema_agree_on_the_kind_of_a_collection() -> None:
    assert Kind.GC == gc_pauses.GC_KIND


def looks(*rows: tuple[int, int, int, bool]) -> list[Evidence]:
    """Evidence per (time, interval, cpu, at work) look of a thread at one neutral stack."""
    seen = profile([("/home/me/train.py", 7, "prepare")])
    names = schema.TABLES["stack_samples"].names
    found = [(0, time, interval, cpu, on, 0) for time, interval, cpu, on in rows]
    columns = {key: [row[i] for row in found] for i, key in enumerate(names)}
    samples = Samples(seen.with_tables(stack_samples=schema.table("stack_samples", columns)), np.zeros(1, np.int64))
    return [evidence for _, _, evidence, _ in samples.divide(0, 0, 1000)]


def test_a_thread_seen_at_work_that_then_slept_is_not_believed_to_have_worked() -> None:
    assert looks((10, 10, 10, True), (400, 390, 15, False)) == [Evidence.NOTHING]
    assert looks((10, 10, 10, True), (400, 390, 200, False)) == [Evidence.HOST, Evidence.NOTHING]


def test_a_look_whose_successor_states_no_interval_is_believed() -> None:
    assert looks((10, 10, 10, True), (400, 0, 0, True)) == [Evidence.HOST]


def test_of_a_librarys_own_event_the_samples_name_the_line() -> None:
    """grain and tf.data say that a stretch is input, not which line of it: 0..40 is input, by its samples."""
    text = """
title: made up
unit ms
capture 0..60
needs shard

thread main
  step 0 0..60
    span IteratorGetNext::made 0..40
  sample 10 on crops.py:41:cut train.py:9:main
  sample 20 on crops.py:41:cut train.py:9:main
  sample 30 off train.py:9:main

expect lane host
  head 0..0
  step 0 0..60 : ?
"""
    seen = profile_of(parse_case(text, "made up"), "shard")
    events = seen["events"]
    kinds = [
        int(Kind.PLAIN) if name.startswith("Iterator") else kind
        for name, kind in zip(events["name"].to_pylist(), events["kind"].to_pylist(), strict=True)
    ]
    columns = {name: events[name] for name in events.column_names} | {"kind": kinds}
    gaps = join_profile(seen.with_tables(events=schema.table("events", columns)))["gaps"].to_pylist()
    found = {(row["cause"], row["evidence"]): row["length_ps"] // 10**9 for row in gaps}
    assert found == {("input", "crops.py:41 cut"): 40, ("unknown", "train"): 20}


def test_stacks_of_one_place_are_one_row_of_evidence() -> None:
    """Two steps at one line of the user's, by two stacks that differ in what the line called."""
    text = """
title: made up
unit ms
capture 0..60
needs shard

thread main
  step 0 0..30
  step 1 30..60
  sample 10 on /usr/lib/python3.11/gzip.py:3:read crops.py:41:cut train.py:9:main
  sample 40 on /usr/lib/python3.11/json/decoder.py:4:decode crops.py:41:cut train.py:9:main

expect lane host
  head 0..0
  step 0 0..30 : ?
  step 1 30..60 : ?
"""
    joined = join_profile(profile_of(parse_case(text, "made up"), "shard"))
    assert len(set(joined["gaps"]["stack"].to_pylist()) - {None}) == 2
    rows = [row for row in evidence_of_gaps(joined).to_pylist() if row["sampled"]]
    assert [(row["evidence"], row["source"], row["pieces"]) for row in rows] == [("crops.py:41 cut", "crops.py:41", 2)]
