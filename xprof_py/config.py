"""Settings of a capture: arguments before XPROF_PY_* before [tool.xprof_py] in pyproject.toml before defaults."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from xprof_py.clock_probe import MOST_PEERS, Address, ProbePlan, parse_address, plan
from xprof_py.errors import UsageError
from xprof_py.messages import warn
from xprof_py.rank import Rank, restart_count

Choice = bool | Literal["auto"]
Backend = Literal["auto", "cupti", "xla"]


@dataclass(frozen=True)
class Settings:
    """What a capture runs with.

    ``session``: name of the folder below RUN/plugins/profile. ``budget_bytes``: most bytes that the shard may take.
    ``ring_bytes``: memory per recorded thread, in a file beside the shard that a killed process leaves;
    ``rings_in_memory``: in plain memory instead; a process that is killed then loses its last moments.
    ``xla``: use XLA's profiler, ``stacks``: sample Python stacks, ``cuda``: collect what GPUs do through CUPTI (each
    True, False, "auto"); ``backend``: who has the devices, "cupti", "xla" or "auto". ``cuda_graphs``: "nodes", each
    kernel of a CUDA graph by itself, or "whole", one entry for a graph's execution: cheaper, but without its ops.
    ``power``: sample power and clocks of NVIDIA's GPUs, every ``power_period_ms``.
    ``probe``: exchange time stamps with the job's other hosts; ``probe_address``: where process 0 answers them,
    ``probe_peers``: where each host does, ``probe_token``: what the job's processes hold (see clock_probe.py).
    ``host_tracer_level``: XLA's 0-3. ``stop_timeout_s``: longest wait of the block's end for the files; the work goes
    on behind it. ``xla_limit_s``: XLA's profiler stops after the step in which it has run so long, 0 for never; it
    keeps all events in memory. ``model_flops_per_token``: of the program's model, for MFU; training a transformer takes
    about 6 per parameter. ``drain_timeout_s``: longest wait for device work in flight at the capture's end.
    ``step_pattern``: a regular expression; ranges whose whole name it matches are steps in a program that marks none,
    its first group their number. ``level``, ``categories``: the filter of annotations while the capture records
    (``set_filter``), None: the program's own.
    """

    session: str = "run"
    budget_bytes: int = 1 << 30
    ring_bytes: int = 4 << 20
    rings_in_memory: bool = False
    xla: Choice = "auto"
    stacks: Choice = "auto"
    cuda: Choice = "auto"
    backend: Backend = "auto"
    cuda_graphs: Literal["nodes", "whole"] = "nodes"
    power: Choice = "auto"
    power_period_ms: int = 100
    probe: Choice = "auto"
    probe_address: Address | None = None
    probe_peers: tuple[Address, ...] = ()
    probe_token: str = ""
    host_tracer_level: int = 2
    stop_timeout_s: float = 60.0
    drain_timeout_s: float = 10.0
    xla_limit_s: float = 600.0
    model_flops_per_token: float | None = None
    step_pattern: str | None = None
    level: int | None = None
    categories: tuple[str, ...] | None = None

    def probe_plan(self, rank: Rank, environ: Mapping[str, str]) -> ProbePlan | str:
        """How this process exchanges time stamps with other hosts, or why it does not."""
        return plan(
            insist=self.probe is True,
            address=self.probe_address,
            peers=self.probe_peers,
            token=self.probe_token,
            rank=rank,
            environ=environ,
        )


def choice(value: object) -> Choice:
    """``value`` as True, False or "auto"; text forms of the environment too. Raises ValueError."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        text = value.strip().lower()
        if text == "auto":
            return "auto"
        if text in ("1", "true", "on", "yes"):
            return True
        if text in ("0", "false", "off", "no"):
            return False
    raise ValueError('wants True, False or "auto"')


def _yes_no(value: object) -> bool:
    chosen = choice(value)
    if chosen == "auto":
        raise ValueError("wants True or False")
    return chosen


def _one_of(*words: str) -> Callable[[object], str]:
    def convert(value: object) -> str:
        if isinstance(value, str) and value.strip().lower() in words:
            return value.strip().lower()
        raise ValueError("wants " + " or ".join(f'"{word}"' for word in words))

    return convert


def _session(value: object) -> str:
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", value):
        return value
    raise ValueError("wants letters, digits, dots, dashes and underscores")


def _integer(least: int, most: int) -> Callable[[object], int]:
    def convert(value: object) -> int:
        if isinstance(value, str) and re.fullmatch(r"\d+", value.strip()):
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
            return value
        raise ValueError(f"wants a whole number from {least} to {most}")

    return convert


def _address(value: object) -> Address:
    if isinstance(value, str):
        return parse_address(value)
    raise ValueError("wants host:port")


def _addresses(value: object) -> tuple[Address, ...]:
    """A list of addresses, or a text with commas between them."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or len(parts) > MOST_PEERS:
        raise ValueError(f"wants at most {MOST_PEERS} addresses, host:port,host:port")
    return tuple(_address(part) for part in parts)


def _token(value: object) -> str:
    if isinstance(value, str) and value:
        return value
    raise ValueError("wants a text")


def _seconds(value: object) -> float:
    try:
        seconds = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else -1.0
    except ValueError:
        seconds = -1.0
    if 0 <= seconds <= 86_400:
        return seconds
    raise ValueError("wants seconds from 0 to 86400")


def _level(value: object) -> int:
    if isinstance(value, str) and re.fullmatch(r"-?\d+", value.strip()):
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and -(2**31) < value < 2**31:
        return value
    raise ValueError("wants a whole number")


def _categories(value: object) -> tuple[str, ...]:
    """A list of texts, or one text with commas between them."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise ValueError("wants texts, a,b")
    return tuple(part.strip() for part in parts)


def _flops(value: object) -> float:
    try:
        flops = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else 0.0
    except ValueError:
        flops = 0.0
    if 0 < flops < 2**63:
        return flops
    raise ValueError("wants a positive number")


def _pattern(value: object) -> str:
    if isinstance(value, str) and value:
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(f"is no regular expression: {error}") from None
        return value
    raise ValueError("wants a regular expression")


_CONVERTERS: dict[str, Callable[[object], Any]] = {
    "session": _session,
    "budget_bytes": _integer(1 << 16, 1 << 50),
    "ring_bytes": _integer(1 << 12, 1 << 36),
    "rings_in_memory": _yes_no,
    "xla": choice,
    "stacks": choice,
    "cuda": choice,
    "backend": _one_of("auto", "cupti", "xla"),
    "cuda_graphs": _one_of("nodes", "whole"),
    "power": choice,
    "power_period_ms": _integer(10, 60_000),
    "probe": choice,
    "probe_address": _address,
    "probe_peers": _addresses,
    "probe_token": _token,
    "host_tracer_level": _integer(0, 3),
    "stop_timeout_s": _seconds,
    "drain_timeout_s": _seconds,
    "xla_limit_s": _seconds,
    "model_flops_per_token": _flops,
    "step_pattern": _pattern,
    "level": _level,
    "categories": _categories,
}


def load_settings(arguments: Mapping[str, object], environ: Mapping[str, str], directory: Path) -> Settings:
    """The settings in force.

    Args:
        arguments: settings given in the call, by field name of :class:`Settings`; None means not given.
        environ: the environment; a field ``x`` is ``XPROF_PY_X`` there.
        directory: where the search for a pyproject.toml with [tool.xprof_py] starts, upwards.

    A job that its launcher restarted gets ``-restart<n>`` after its session name, so that a restart neither fails on
    nor overwrites what the earlier attempt left in the same folder.

    What does not fit in pyproject.toml is a warning and leaves the default: that file is often somebody else's, and no
    training should end because of it.

    Raises:
        UsageError: an argument or a variable that does not fit.
    """
    chosen: dict[str, Any] = {}
    file, table = _project_table(directory)
    unknown = sorted(set(table) - set(_CONVERTERS))
    if unknown:
        warn(f"{file}: [tool.xprof_py] has no setting {', '.join(unknown)}; there are {', '.join(_CONVERTERS)}")
    for field in fields(Settings):
        name = field.name
        variable = f"XPROF_PY_{name.upper()}"
        given = arguments.get(name)
        source = f"argument {name}"
        if given is None:
            given, source = environ.get(variable) or None, variable
        if given is not None:
            try:
                chosen[name] = _CONVERTERS[name](given)
            except ValueError as error:
                raise UsageError(f"{source} = {given!r}: {error}") from None
        elif name in table:
            try:
                chosen[name] = _CONVERTERS[name](table[name])
            except ValueError as error:
                default = getattr(Settings, name)
                warn(f"{file}: tool.xprof_py.{name} = {table[name]!r}: {error}; the default is used, {default!r}")
    restarts = restart_count(environ)
    if restarts:
        chosen["session"] = f"{chosen.get('session', Settings.session)}-restart{restarts}"
    return Settings(**chosen)


def _project_table(directory: Path) -> tuple[str, Mapping[str, object]]:
    """The nearest pyproject.toml upwards that has [tool.xprof_py], as (path, table); an empty table where none has.

    One that cannot be understood ends the search with a warning: whether it has the table is not known.
    """
    for folder in (directory, *directory.parents):
        path = folder / "pyproject.toml"
        try:
            if not path.is_file():
                continue
            text = path.read_bytes()
        except OSError:
            continue
        # Of most programs there is none, and reading TOML takes as long to learn as the rest of the SDK.
        import tomllib

        try:
            tools = tomllib.loads(text.decode("utf-8")).get("tool")
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
            warn(f"{path}: cannot be read: {error}; the default settings are used")
            break
        if not isinstance(tools, dict) or "xprof_py" not in tools:
            continue
        if isinstance(tools["xprof_py"], dict):
            return os.fspath(path), tools["xprof_py"]
        warn(f"{path}: tool.xprof_py is not a table; the default settings are used")
        break
    return "pyproject.toml", {}
