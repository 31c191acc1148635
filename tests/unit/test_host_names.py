"""Which names are evidence: whole names only, and never a part of one."""

from __future__ import annotations

import pytest

from xprof_py.postprocess.join.host_names import Evidence, evidence_of, function_name, module_key, named_cause


@pytest.mark.parametrize(
    "name",
    [
        "input",
        "load_batch",
        "LoadBatch",
        "data loading",
        "next_batch",
        "data-wait",
        "get_next_batch",
        "dataloader",
        "DataPrefetcher",
    ],
)
def test_names_of_input(name: str) -> None:
    assert named_cause(name) is Evidence.INPUT


@pytest.mark.parametrize("name", ["checkpoint", "save_checkpoint", "SaveCheckpoint", "ckpt", "restore_state"])
def test_names_of_checkpoints(name: str) -> None:
    assert named_cause(name) is Evidence.CHECKPOINT


@pytest.mark.parametrize(
    "name",
    [
        "step_input",
        "input_ids",
        "input_embedding",
        "train",
        "forward",
        "loading",
        "batch_norm",
        "next",
        "state",
        "prefetch",
    ],
)
def test_names_that_only_contain_such_a_word_say_nothing(name: str) -> None:
    assert named_cause(name) is Evidence.NOTHING


@pytest.mark.parametrize(
    ("name", "evidence"),
    [
        ("PjitFunction(train_step)", Evidence.HOST),
        ("DevicePutWithSharding", Evidence.HOST),
        ("backend_compile_and_load", Evidence.COMPILER),
        ("$train.py:34 load_batch", Evidence.INPUT),
        ("$train.py:34 augment", Evidence.HOST),
        ("$time sleep", Evidence.NOTHING),
        ("Wait for LaunchOnDevice completion", Evidence.HOST),
        ("somebody's own annotation", Evidence.NOTHING),
        # torch's DataLoader names its wait itself; tf.data its iterators.
        ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", Evidence.INPUT),
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", Evidence.INPUT),
        ("IteratorGetNextOp::DoCompute", Evidence.INPUT),
        ("IteratorGetNextAsOptionalOp::DoCompute", Evidence.INPUT),
        ("IteratorGetNext:IteratorGetNext", Evidence.INPUT),
        ("MultiDeviceIteratorGetNextFromShard:MultiDeviceIteratorGetNextFromShard", Evidence.INPUT),
        ("Iterator::Prefetch::Generator", Evidence.INPUT),
        ("IteratorState", Evidence.NOTHING),
        ("enumerate(DataLoader)", Evidence.NOTHING),
        # Frames of XLA's Python tracer, which shows the last part of a path.
        ("$dataloader.py:733 __next__", Evidence.INPUT),
        ("$data_loader.py:547 __next__", Evidence.INPUT),
        ("$iterator_ops.py:826 __next__", Evidence.INPUT),
        ("$iterable_dataset.py:2300 __iter__", Evidence.INPUT),
        ("$dataloader.py:100 __init__", Evidence.HOST),
        ("$array.py:12 __next__", Evidence.HOST),
        ("$checkpoint_manager.py:1334 save", Evidence.CHECKPOINT),
        ("$async_checkpointer.py:684 wait_until_finished", Evidence.CHECKPOINT),
        ("$serialization.py:943 save", Evidence.CHECKPOINT),
        ("$_npyio_impl.py:505 save", Evidence.CHECKPOINT),
        ("$_npyio_impl.py:312 load", Evidence.HOST),
        ("$checkpoints.py:581 save_checkpoint", Evidence.CHECKPOINT),
        ("$queue.py:154 get", Evidence.NOTHING),
        ("$time perf_counter", Evidence.HOST),
    ],
)
def test_events_of_another_tools_trace(name: str, evidence: Evidence) -> None:
    assert evidence_of(name) is evidence


def test_a_function_and_its_module_have_one_key() -> None:
    assert module_key("<lambda>") == module_key("jit__lambda") == module_key("jit__lambda_")
    assert module_key("train_step") == module_key("jit_train_step")
    assert function_name("jit(train_step)") == "train_step"
    assert function_name("train_step") == "train_step"
