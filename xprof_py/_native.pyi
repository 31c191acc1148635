"""Types of the C core. Each part of native/python declares what it adds."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from os import PathLike
from types import TracebackType
from typing import Any, TypeVar, final, overload, type_check_only

from numpy.typing import NDArray
from typing_extensions import Buffer

_F = TypeVar("_F", bound=Callable[..., Any] | classmethod[Any, Any, Any])

# --- annotations ----------------------------------------------------------------------------------------------------
# trace and step are classes. They are declared as functions because @trace, used alone, gives back a function, which
# checkers do not expect of a class.

@type_check_only
@final
class Span(AbstractContextManager[Span, None]):
    def __enter__(self) -> Span: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...
    def __call__(self, function: _F, /) -> _F: ...

@type_check_only
@final
class Step(AbstractContextManager[Step, None]):
    def __enter__(self) -> Step: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...

@overload
def trace(name: str, /, **args: Any) -> Span: ...
@overload
def trace(function: _F, /, **args: Any) -> _F: ...
def step(number: int, /, *, name: str = "train", **args: Any) -> Step: ...
@overload
def input_wait(name: str = "input", /, **args: Any) -> Span: ...
@overload
def input_wait(function: _F, /, **args: Any) -> _F: ...
@overload
def checkpoint(name: str = "checkpoint", /, **args: Any) -> Span: ...
@overload
def checkpoint(function: _F, /, **args: Any) -> _F: ...
def mark(name: str, /, **args: Any) -> None: ...
def counter(name: str, value: float, /) -> None: ...
def decorated(
    function: Callable[..., Any], kind: int, name: Any, keys: tuple[str, ...], values: tuple[Any, ...], /
) -> Any: ...

# --- the recorder -----------------------------------------------------------------------------------------------------
def record_past(name: str, kind: int, duration_ns: int, /, **args: Any) -> None: ...
def recorder_start(
    path: str | PathLike[str],
    *,
    budget_bytes: int = ...,
    ring_bytes: int = ...,
    window_s: float = ...,
    rings_in_memory: bool = ...,
) -> None: ...
def recorder_stop(timeout_s: float = 5.0) -> dict[str, Any]: ...
def recorder_status() -> dict[str, Any]: ...
def flight_describe(folder: str, shard_name: str, run_file_name: str, head: str, limit: int, /) -> None: ...
def flight_snapshot(name: str, about: str, timeout_s: float, /) -> None: ...
def flight_signal(on: bool, /) -> None: ...
def flight_report() -> tuple[list[dict[str, Any]], int]: ...
def recording() -> bool: ...
def sampler_self_test() -> str | None: ...
def sampler_start(
    main_ident: int, main_tid: int, switch_ns: int, takes_gil: bool, *, period_ns: int = 10_000_000
) -> None: ...
def sampler_trial(ident: int, looks: int, /) -> dict[str, Any]: ...
def sampler_stop() -> dict[str, Any]: ...
def probe_start(key: bytes, serve_port: int, addresses: Sequence[tuple[str, str, int, bool]], /) -> None: ...
def probe_stop(timeout_s: float = 2.0, /) -> dict[str, Any]: ...
def set_thread_hook(hook: Callable[[int], object] | None, /) -> None: ...
def set_name_hook(hook: Callable[[str], object] | None, /) -> None: ...
def set_step_listener(listener: Callable[[str, str, int], object] | None, /) -> None: ...
def set_step_marker(factory: Callable[..., AbstractContextManager[object]] | None, /) -> None: ...
def set_filter(level: int | None, categories: Iterable[str] | None, /) -> None: ...

# --- the decoders -----------------------------------------------------------------------------------------------------
@final
class Column:
    """A decoded column: a writable buffer of int64, int32 or uint8, for numpy.asarray."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class DecodeError(ValueError):
    """Bytes that are not the format they should be: `offset` in bytes, `place` (a path), `reason`."""

    offset: int
    place: str
    reason: str

def decode_xspace(buffer: Buffer, /) -> dict[str, Any]: ...

@final
class ChromeScanner:
    def __new__(cls) -> ChromeScanner: ...
    def feed(self, piece: Buffer, /) -> None: ...
    def finish(self) -> dict[str, Any]: ...

def decode_hlo(buffer: Buffer, /) -> dict[str, Any]: ...
def decode_shard_events(
    bodies: list[tuple[int, NDArray[Any]]],
    lines: int,
    ticks: NDArray[Any],
    at_ps: NDArray[Any],
    ps_per_tick: NDArray[Any],
    names: int,
    /,
) -> dict[str, Any]: ...
def decode_shard_args(
    bodies: list[NDArray[Any]],
    first: NDArray[Any],
    counts: NDArray[Any],
    at: NDArray[Any],
    keys: NDArray[Any],
    kinds: NDArray[Any],
    texts: int,
    /,
) -> dict[str, Any]: ...
def shard_checksum(structure: NDArray[Any], own: int, /) -> int: ...
def fit_line(
    upper_t: Any,
    upper_y: Any,
    lower_t: Any,
    lower_y: Any,
    at: Any,
    low: Any,
    high: Any,
    slope_min: float,
    slope_max: float,
    /,
) -> tuple[float, float, float, float, float, float]:
    """Fit the line of largest margin between bounds (native/kernels/envelope.h)."""

def place_events(
    line: Any, metadata: Any, start_ps: Any, duration_ps: Any, line_base_ps: Any, name_of_metadata: Any, /
) -> tuple[Column, bool, int, int]: ...
def all_within(column: Any, limit: int, /) -> bool: ...
def rows_by_code(code: Any, keep: Any, /) -> tuple[Column, Column]: ...
def innermost(
    start_ps: Any,
    end_ps: Any,
    name: Any,
    first: int,
    count: int,
    name_says: Any,
    special_rows: Any,
    special_says: Any,
    more_start_ps: Any,
    more_end_ps: Any,
    more_event: Any,
    more_says: Any,
    keep_start_ps: Any,
    keep_end_ps: Any,
    strong: int,
    join_alike: bool,
    /,
) -> tuple[Column, Column, Column, Column]: ...
