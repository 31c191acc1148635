"""_native.pyi says what the C core has: mypy knows of it by nothing else."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import xprof_py
from xprof_py import _native

STUB = ast.parse(Path(xprof_py.__file__).with_name("_native.pyi").read_text(encoding="utf-8"))
FUNCTIONS = {node.name: node for node in STUB.body if isinstance(node, ast.FunctionDef)}
CLASSES = {node.name for node in STUB.body if isinstance(node, ast.ClassDef)}
CONSTANTS = {
    node.target.id for node in STUB.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
}
# Overloads have several signatures, the C core states one.
SIGNED = [
    name
    for name, function in FUNCTIONS.items()
    if not function.decorator_list and getattr(getattr(_native, name, None), "__text_signature__", None)
]


def test_every_name_of_the_core_is_declared() -> None:
    there = {name for name in dir(_native) if not name.startswith("__")}
    assert there - (FUNCTIONS.keys() | CLASSES | CONSTANTS) == set()


def test_every_declared_function_is_in_the_core() -> None:
    assert {name for name in FUNCTIONS if not callable(getattr(_native, name, None))} == set()


@pytest.mark.parametrize("name", SIGNED)
def test_a_function_is_declared_with_the_parameters_that_it_takes(name: str) -> None:
    arguments = FUNCTIONS[name].args
    declared = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    taken = [
        parameter.name
        for parameter in inspect.signature(getattr(_native, name)).parameters.values()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    assert taken == declared
