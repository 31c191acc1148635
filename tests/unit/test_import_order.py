"""The rooms of ARCHITECTURE.md hold: imports go one way, the SDK stays light, files stay small and well named.

The checks read source text (``ast``), so that they also see imports inside functions and need nothing installed.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]

ORDER: tuple[tuple[str, ...], ...] = (
    ("native",),
    ("sdk",),
    ("schema",),
    ("profile",),
    ("readers",),
    ("hlo",),
    ("join",),
    ("match",),
    ("clocks",),
    ("analyses", "replay"),
    ("rules",),
    ("fleet", "writers"),
    ("viewers",),
    ("cli",),
)
"""A room imports itself and rooms of earlier rows. Rooms of one row do not know each other."""

RANK = {room: rank for rank, rooms in enumerate(ORDER) for room in rooms}

FACADE = "xprof_py._facade"
"""The one exemption: `load` and the methods of a loaded profile, imported on first use."""

DEMO = "xprof_py.demo_training"
"""A program that uses the SDK as a user's would; nothing imports it, it is run."""

HARD_DEPENDENCIES = {"numpy", "pyarrow", "orjson"}
OPTIONAL_PACKAGES = {"jax", "jaxlib", "dask", "distributed", "cupy", "nvtx", "fsspec", "torch", "duckdb"}

FORBIDDEN_WORDS = {"util", "utils", "helper", "helpers", "common", "base", "manager", "handler", "misc"}
MAX_LINES = 600
WRITTEN_BY_HAND = {".py", ".pyi", ".c", ".h", ".js", ".css", ".html", ".md"}
FOLDERS = ("xprof_py", "native", "postprocess", "viewers", "tests", "benchmarks", "docs")


@dataclass(frozen=True)
class Import:
    """One imported module: where, its full dotted name, and whether importing the file runs it."""

    file: str
    line: int
    target: str
    at_import: bool

    def __str__(self) -> str:
        return f"{self.file}:{self.line} imports {self.target}"


def module_name(file: Path, checkout: Path) -> str:
    """The name under which the package installs ``file`` (postprocess/ and viewers/ are mapped into xprof_py)."""
    parts = list(file.relative_to(checkout).with_suffix("").parts)
    if parts[0] in ("postprocess", "viewers"):
        parts.insert(0, "xprof_py")
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join(parts)


def modules_of(checkout: Path) -> dict[str, Path]:
    """Every module of the package: dotted name -> file."""
    return {
        module_name(file, checkout): file
        for folder in ("xprof_py", "postprocess", "viewers")
        for file in sorted((checkout / folder).rglob("*.py"))
    }


def room_of(module: str) -> str | None:
    """The room of a module of the package, None where the plan has no place for it."""
    parts = module.split(".")
    if parts == ["xprof_py", "_native"]:
        return "native"
    if len(parts) > 1 and parts[1] == "postprocess":
        # The package's own __init__ is imported before everything in it, so it belongs to the lowest room there.
        room = parts[2] if len(parts) > 2 else "schema"
        return room if room in RANK and RANK["schema"] <= RANK[room] < RANK["viewers"] else None
    if len(parts) > 1 and parts[1] in ("viewers", "cli"):
        return parts[1]
    if module == "xprof_py.__main__":
        return "cli"
    return "sdk"


def imports_of(module: str, file: Path, known: set[str]) -> Iterator[Import]:
    """Every import statement and every ``import_module("literal")`` of a file, function-level ones included."""
    is_package = file.name == "__init__.py"

    def resolve(node: ast.ImportFrom) -> Iterator[str]:
        source = node.module or ""
        if node.level:
            above = node.level - 1 if is_package else node.level
            package = module.split(".")[: len(module.split(".")) - above]
            source = ".".join([*package, source] if source else package)
        for alias in node.names:
            # `from package import name` imports a submodule where there is one of that name.
            submodule = f"{source}.{alias.name}"
            yield submodule if submodule in known else source

    def visit(node: ast.AST, at_import: bool) -> Iterator[Import]:
        found: list[str] = []
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found = list(resolve(node))
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                found = [node.args[0].value]
        for target in found:
            yield Import(str(file), getattr(node, "lineno", 0), target, at_import)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.body:
                yield from visit(child, False)
            for child in node.orelse:
                yield from visit(child, at_import)
            return
        inside_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, at_import and not inside_function)

    yield from visit(ast.parse(file.read_text(encoding="utf-8"), str(file)), True)


def objection(module: str, found: Import) -> str | None:
    """Why this import is not allowed, or None."""
    if module == FACADE:
        return None
    top = found.target.split(".")[0]
    if top == "xprof_py":
        if found.target == FACADE:
            if module == "xprof_py" and found.at_import:
                return f"{found}: the facade is imported on first use, not with the SDK"
            if module != "xprof_py" and room_of(module) != "cli":
                return f"{found}: only the package itself and the commands know the facade"
            return None
        if found.target == DEMO:
            return f"{found}: the demo is a program to run, not a module to import"
        mine, other = room_of(module), room_of(found.target)
        if mine is None or other is None:
            return f"{found}: {module if mine is None else found.target} has no room in the plan"
        if mine != other and RANK[other] >= RANK[mine]:
            return f"{found}: {mine} does not import {other}"
        return None
    if top in sys.stdlib_module_names:
        return None
    if found.at_import and top not in HARD_DEPENDENCIES:
        return f"{found}: an optional package is imported inside the function that needs it"
    if room_of(module) == "sdk" and module != DEMO and top not in OPTIONAL_PACKAGES:
        return f"{found}: the SDK imports the standard library and xprof_py._native only"
    if room_of(module) == "sdk" and module == DEMO and found.at_import and top != "numpy":
        return f"{found}: the demo imports what it trains with inside its functions"
    if top not in HARD_DEPENDENCIES | OPTIONAL_PACKAGES:
        return f"{found}: not a dependency of the project"
    return None


def objections(checkout: Path) -> list[str]:
    """All objections to a checkout's imports, in file order."""
    known = modules_of(checkout)
    names = set(known) | {"xprof_py._native"}
    return [
        said
        for module, file in known.items()
        for found in imports_of(module, file, names)
        if (said := objection(module, found)) is not None
    ]


def written_files(checkout: Path) -> list[Path]:
    """The files that people write and read, build outputs left out."""
    inside = [file for folder in FOLDERS for file in (checkout / folder).rglob("*")]
    return sorted(
        file
        for file in [*inside, *checkout.iterdir()]
        if file.is_file() and file.suffix in WRITTEN_BY_HAND and "__pycache__" not in file.parts
    )


def test_imports_go_one_way() -> None:
    assert objections(CHECKOUT) == []


def test_every_module_has_a_room() -> None:
    assert [module for module in modules_of(CHECKOUT) if room_of(module) is None] == []


def test_files_stay_small() -> None:
    # A page that a script writes has the length of what it tells.
    files = [file for file in written_files(CHECKOUT) if file != CHECKOUT / "docs" / "tables.md"]
    sizes = {file: len(file.read_text(encoding="utf-8").splitlines()) for file in files}
    assert len(sizes) >= 20
    assert {str(file): lines for file, lines in sizes.items() if lines > MAX_LINES} == {}


def test_file_names_say_something() -> None:
    assert [str(file) for file in written_files(CHECKOUT) if FORBIDDEN_WORDS & set(file.stem.lower().split("_"))] == []


@pytest.mark.parametrize(
    ("file", "source", "said"),
    [
        (
            "postprocess/readers/shard.py",
            "from xprof_py.postprocess.join import windows",
            "readers does not import join",
        ),
        (
            "postprocess/readers/shard.py",
            "def f():\n    import xprof_py.viewers.terminal",
            "readers does not import viewers",
        ),
        ("postprocess/readers/shard.py", "from ..rules import verdict", "readers does not import rules"),
        ("postprocess/analyses/steps.py", "from xprof_py.postprocess import replay", "analyses does not import replay"),
        (
            "viewers/page.py",
            "from importlib import import_module\nimport_module('xprof_py.cli')",
            "viewers does not import cli",
        ),
        ("xprof_py/session.py", "def f():\n    from xprof_py.postprocess import schema", "sdk does not import schema"),
        ("xprof_py/session.py", "import numpy", "the SDK imports the standard library"),
        ("xprof_py/session.py", "def f():\n    import numpy", "the SDK imports the standard library"),
        ("xprof_py/session.py", "try:\n    import jax\nexcept ImportError:\n    jax = None", "inside the function"),
        ("xprof_py/__init__.py", "from xprof_py._facade import load", "on first use"),
        ("xprof_py/session.py", "def f():\n    from xprof_py._facade import load", "only the package itself"),
        ("postprocess/hlo/cost.py", "import dask", "inside the function"),
        ("postprocess/hlo/cost.py", "def f():\n    import pandas", "not a dependency"),
        ("postprocess/intervals.py", "import xprof_py.errors", "has no room in the plan"),
        ("xprof_py/cli/demo.py", "from xprof_py import demo_training", "a program to run"),
    ],
)
def test_a_wrong_import_is_seen(tmp_path: Path, file: str, source: str, said: str) -> None:
    for module in ("postprocess/replay", "postprocess/join", "postprocess/rules", "viewers", "xprof_py/cli"):
        (tmp_path / module).mkdir(parents=True, exist_ok=True)
        (tmp_path / module / "__init__.py").touch()
    (tmp_path / "xprof_py/demo_training.py").touch()
    written = tmp_path / file
    written.parent.mkdir(parents=True, exist_ok=True)
    written.write_text(source)
    found = objections(tmp_path)
    assert len(found) == 1
    assert said in found[0]


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("postprocess/join/steps.py", "import numpy as np\nfrom xprof_py.postprocess import schema"),
        ("xprof_py/collectors/xla.py", "def f():\n    import jax"),
        ("xprof_py/__init__.py", "def f():\n    from xprof_py._facade import load"),
        (
            "xprof_py/__init__.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from xprof_py._facade import load",
        ),
        ("xprof_py/_facade.py", "from xprof_py.viewers import terminal"),
        ("xprof_py/__main__.py", "from xprof_py.cli import main"),
    ],
)
def test_a_right_import_passes(tmp_path: Path, file: str, source: str) -> None:
    written = tmp_path / file
    written.parent.mkdir(parents=True)
    written.write_text(source)
    assert objections(tmp_path) == []
