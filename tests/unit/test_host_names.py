"""Which names are evidence: whole names only, and never a part of one."""

from __future__ import annotations

import pytest

from xprof_py.postprocess.join.host_names import Evidence, evidence_of, function_name, module_key, named_cause


@pytest.mark.parametrize(
    "name",
    ["input", "load_batch", "LoadBatch", "data loading", "next_batch", "data-wait", "get_next_batch", "dataloader"],
)
def test_names_of_input(name: str) -> None:
    assert named_cause(name) is Evidence.INPUT


@pytest.mark.parametrize("name", ["checkpoint", "save_checkpoint", "SaveCheckpoint", "ckpt", "restore_state"])
def test_names_of_checkpoints(name: str) -> None:
    assert named_cause(name) is Evidence.CHECKPOINT


@pytest.mark.parametrize(
    "name", ["step_input", "input_ids", "input_embedding", "train", "forward", "loading", "batch_norm", "next", "state"]
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
    ],
)
def test_events_of_another_tools_trace(name: str, evidence: Evidence) -> None:
    assert evidence_of(name) is evidence


def test_a_function_and_its_module_have_one_key() -> None:
    assert module_key("<lambda>") == module_key("jit__lambda") == module_key("jit__lambda_")
    assert module_key("train_step") == module_key("jit_train_step")
    assert function_name("jit(train_step)") == "train_step"
    assert function_name("train_step") == "train_step"
