"""A class made by ``frozen`` cannot be told from one made by dataclass(frozen=True), but for what it costs."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import pytest

from xprof_py.postprocess.frozen import frozen


class Body:
    """A point with a history."""

    x_ps: int
    name: str = "origin"
    past: list[int] = field(default_factory=list)

    @cached_property
    def doubled(self) -> int:
        return self.x_ps * 2


def _made(decorator: Any) -> Any:
    members = {k: v for k, v in vars(Body).items() if k not in ("__dict__", "__weakref__")}
    made = type("Point", (), members)
    made.doubled.__set_name__(made, "doubled")
    return decorator(made)


@frozen
class Kept:
    """At the module's top, where pickle finds it."""

    a: int
    b: tuple[int, ...] = ()


ours, theirs = _made(frozen), _made(dataclass(frozen=True))
"""The same class twice; each test that makes the first instance of one makes its own."""

ARGUMENTS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((1,), {}),
    ((1, "b"), {}),
    ((1,), {"past": [3]}),
    ((), {"name": "b", "x_ps": 4}),
]


@pytest.mark.parametrize(("args", "kwargs"), ARGUMENTS)
def test_values_repr_and_fields_are_those_of_the_dataclass(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    a, b = ours(*args, **kwargs), theirs(*args, **kwargs)
    assert asdict(a) == asdict(b)
    assert repr(a) == repr(b).replace("Body", "Point")
    assert [f.name for f in fields(a)] == [f.name for f in fields(b)]
    assert a == ours(*args, **kwargs)
    assert a != b
    assert replace(a, x_ps=9) == ours(9, a.name, a.past)
    assert a.doubled == 2 * a.x_ps


@pytest.mark.parametrize(("args", "kwargs"), [((), {}), ((1, "b", [], 4), {}), ((1,), {"y": 2}), ((1,), {"x_ps": 2})])
def test_wrong_arguments_are_refused_by_the_first_call_and_every_other(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    made = _made(frozen)
    for _ in range(2):
        with pytest.raises(TypeError, match="__init__"):
            made(*args, **kwargs)


def test_nothing_can_be_set_or_deleted() -> None:
    point = ours(1)
    with pytest.raises(FrozenInstanceError, match="x_ps"):
        point.x_ps = 2
    with pytest.raises(FrozenInstanceError, match="x_ps"):
        del point.x_ps
    assert point.x_ps == 1


def test_equal_ones_have_one_hash_and_each_has_its_own_default() -> None:
    assert hash(Kept(1, (2,))) == hash(Kept(1, (2,))) == hash((1, (2,)))
    assert len({Kept(1), Kept(1), Kept(2)}) == 2
    assert ours(1).past is not ours(1).past
    with pytest.raises(TypeError, match="unhashable"):
        hash(ours(1))


def test_a_copy_made_without_init_is_whole() -> None:
    point = Kept(1, (2, 3))
    for copied in (pickle.loads(pickle.dumps(point)), copy.copy(point), copy.deepcopy(point)):
        assert copied == point
        assert repr(copied) == "Kept(a=1, b=(2, 3))"


def test_what_it_does_not_do_it_refuses() -> None:
    with pytest.raises(TypeError, match="base class"):
        frozen(type("Below", (Kept,), {"__annotations__": {"c": int}}))
    with pytest.raises(TypeError, match="__post_init__"):
        frozen(type("Checked", (), {"__annotations__": {"c": int}, "__post_init__": lambda self: None}))
    with pytest.raises(TypeError, match="nothing else"):
        frozen(type("Hidden", (), {"__annotations__": {"c": int}, "c": field(repr=False)}))
