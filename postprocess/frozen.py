"""``frozen``: dataclass(frozen=True) at a tenth of what it costs to define one.

The analysis has about a hundred such classes, for each of which the standard library compiles six methods: a tenth of
a small analysis. Here ``__init__`` alone is compiled, when it is first called; the others are the same for all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from operator import attrgetter
from typing import Any, NoReturn, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[T]) -> type[T]:
    """``cls`` as dataclass(frozen=True) makes it: fields, replace, equality, hash and repr are the same.

    Raises TypeError where a base class has fields, for ``__post_init__``, and for a field with more than a default.
    """
    if hasattr(cls, "__dataclass_fields__") or hasattr(cls, "__post_init__"):
        raise TypeError(f"{cls.__name__}: frozen takes neither fields of a base class nor __post_init__")
    made: Any = dataclass(init=False, repr=False, eq=False)(cls)
    if any(f.kw_only or not (f.init and f.compare and f.repr and f.hash is None) for f in fields(made)):
        raise TypeError(f"{cls.__name__}: frozen takes fields with defaults, nothing else")
    values_of = attrgetter(*(f.name for f in fields(made)))

    def first_init(self: Any, *args: Any, **kwargs: Any) -> None:
        made.__init__ = _init_of(made)
        made.__init__(self, *args, **kwargs)

    def equal(self: Any, other: object) -> bool:
        return bool(values_of(self) == values_of(other)) if other.__class__ is self.__class__ else NotImplemented

    def hashed(self: Any) -> int:
        return hash(values_of(self))

    made.__init__, made.__eq__, made.__hash__ = first_init, equal, hashed
    made.__repr__, made.__setattr__, made.__delattr__ = _shown, _not_set, _not_deleted
    return cls


def _init_of(made: Any) -> Callable[..., None]:
    """The ``__init__`` of a class with fields, as dataclass(frozen=True) writes it."""
    space: dict[str, Any] = {"_set": object.__setattr__, "_MISSING": MISSING}
    arguments, lines = ["self"], []
    for f in fields(made):
        value = f.name
        if f.default is not MISSING:
            space[f"_default_{f.name}"] = f.default
            arguments.append(f"{f.name}=_default_{f.name}")
        elif f.default_factory is not MISSING:
            space[f"_new_{f.name}"] = f.default_factory
            arguments.append(f"{f.name}=_MISSING")
            value = f"_new_{f.name}() if {f.name} is _MISSING else {f.name}"
        else:
            arguments.append(f.name)
        lines.append(f" _set(self, {f.name!r}, {value})\n")
    exec(f"def __init__({', '.join(arguments)}):\n{''.join(lines)}", space)
    init: Callable[..., None] = space["__init__"]
    init.__qualname__ = f"{made.__qualname__}.__init__"
    return init


def _shown(self: Any) -> str:
    values = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in fields(self))
    return f"{type(self).__qualname__}({values})"


def _not_set(self: object, name: str, value: object) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _not_deleted(self: object, name: str) -> NoReturn:
    raise FrozenInstanceError(f"cannot delete field {name!r}")
