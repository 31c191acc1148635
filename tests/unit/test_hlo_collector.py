"""The collector of compiled programs against a client made by hand: each once, within its budget, never an error."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from xprof_py.collectors import hlo_modules
from xprof_py.collectors.hlo_modules import HloModules, hlo_proto, module_id
from xprof_py.postprocess.readers.xspace import read_programs_file
from xspace_schema import HloProto


class Module:
    def __init__(self, name: str, number: int, size: int = 0) -> None:
        self.name = name
        hlo = HloProto().hlo_module
        hlo.name, hlo.id, hlo.entry_computation_name = name, number, "x" * size
        self.content = hlo.SerializeToString()

    def as_serialized_hlo_module_proto(self) -> bytes:
        return self.content


class Executable:
    def __init__(self, *modules: Module) -> None:
        self.fingerprint, self.modules, self.asked = None, list(modules), 0

    def hlo_modules(self) -> list[Module]:
        self.asked += 1
        return self.modules


@pytest.fixture
def alive(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The executables of a client that is up, the newest first."""
    found: list[Any] = []
    client = SimpleNamespace(live_executables=lambda: list(found))
    jax = SimpleNamespace(devices=lambda: [SimpleNamespace(client=client)])
    monkeypatch.setitem(sys.modules, "jax", jax)
    monkeypatch.setattr(hlo_modules, "jax_backend_is_up", lambda: True)
    return found


def stored(modules: HloModules, folder: Path) -> list[tuple[int, str]]:
    file = folder / "0-1.hlo.pb"
    file.write_bytes(modules.xspace())
    table = read_programs_file(file)
    return list(zip(table["program_id"].to_pylist(), table["name"].to_pylist(), strict=True))


def test_each_program_is_asked_for_once_and_kept_though_it_dies(alive: list[Any], tmp_path: Path) -> None:
    modules = HloModules()
    first, second = Executable(Module("jit_f", 3)), Executable(Module("jit_g", 2**63 - 5))
    alive.insert(0, first)
    modules.take_newest()
    alive.insert(0, second)
    modules.take_newest()
    modules.take_newest()
    alive.remove(first)
    modules.take_all()
    assert (first.asked, second.asked) == (1, 1)
    assert stored(modules, tmp_path) == [(3, "jit_f"), (2**63 - 5, "jit_g")]


def test_what_is_past_the_budget_is_counted(alive: list[Any], tmp_path: Path) -> None:
    modules = HloModules(budget_bytes=1000)
    alive += [Executable(Module("large", 1, 2000)), Executable(Module("small", 2, 100))]
    modules.take_all()
    assert modules.left_out == 1
    assert stored(modules, tmp_path) == [(2, "small")]


def test_the_budget_is_of_all_compiles_together(alive: list[Any], tmp_path: Path) -> None:
    """1000 bytes: of 400 each the third is past it, a small one after it is not; the first, again, takes nothing."""
    modules = HloModules(budget_bytes=1000)
    for number, size in ((1, 400), (2, 400), (3, 400), (1, 400), (4, 10)):
        alive.insert(0, Executable(Module(f"jit_{number}", number, size)))
        modules.take_newest()
    assert modules.left_out == 1
    assert [number for number, _ in stored(modules, tmp_path)] == [1, 2, 4]


def test_a_program_that_cannot_be_told_costs_itself_alone(alive: list[Any], tmp_path: Path) -> None:
    modules = HloModules()
    broken = Executable()
    broken.modules = None  # type: ignore[assignment]
    alive += [broken, Executable(Module("jit_f", 3))]
    modules.take_all()
    assert modules.failed == 1
    assert stored(modules, tmp_path) == [(3, "jit_f")]


def test_where_jax_has_no_devices_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    # Other tests of this process may have brought the devices up.
    monkeypatch.setattr(hlo_modules, "jax_backend_is_up", lambda: False)
    modules = HloModules()
    modules.take_all()
    assert (len(modules), modules.failed) == (0, 0)


def test_the_id_is_read_past_fields_of_any_kind() -> None:
    hlo = HloProto()
    hlo.hlo_module.name, hlo.hlo_module.id = "jit_f", 77
    content = hlo.hlo_module.SerializeToString()
    assert module_id(b"\x99\x06" + bytes(8) + b"\x9d\x06" + bytes(4) + content) == 77
    assert module_id(b"") == 0
    assert HloProto.FromString(hlo_proto(content)) == hlo
    with pytest.raises(ValueError, match="byte"):
        module_id(b"\x28\xff")
