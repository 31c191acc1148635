"""Who runs the tasks: this process, worker processes of this machine, or a Dask cluster.

    scheduler.run(function, tasks) -> yields (place of the task, what function(*task) returned, or Failed)

in any order. A task that raises, or whose worker dies three times, is Failed: its process is left out and named. What
every other task would meet too (ENDS_ALL) and the death of the scheduler itself end the run instead.
Functions and arguments are pickled; a function is one of a module, called by its name.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from xprof_py.errors import UsageError, XprofPyError
from xprof_py.postprocess.fleet.spool import SpoolError
from xprof_py.postprocess.readers.workers import worker_count

ENDS_ALL = (SpoolError, UsageError)
"""Errors that every other task would have too: a disk that is full, a setting that cannot be read."""

ATTEMPTS = 3
"""How often a task is begun whose worker dies."""

GO_ON = "What was finished is kept: the same command with --resume goes on"
Task = tuple[Any, ...]


@dataclass(frozen=True)
class Failed:
    """Why there is no result: words for a diagnostics row, and the place in the code if there is one."""

    reason: str
    place: str = ""


class Scheduler(Protocol):
    def run(self, function: Callable[..., Any], tasks: Sequence[Task]) -> Iterator[tuple[int, Any]]: ...

    def close(self) -> None: ...


def scheduler_for(where: Any, workers: int | None, *, tasks: int, input_bytes: int) -> Scheduler:
    """The scheduler of a run of so many ``tasks`` at once.

    ``where``: the address of a Dask scheduler, a distributed.Client, or None for this machine; ``workers``: how many
    processes there, by default one per core and at most one per WORTH_A_WORKER_BYTES of input. Raises XprofPyError.
    """
    if where is not None:
        return OnDask(where)
    workers = min(worker_count(workers, input_bytes), tasks)
    return LocalWorkers(workers) if workers > 1 else InProcess()


def failure(error: BaseException) -> Failed:
    """An error of the analysis as words."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
    return Failed(f"cannot be analysed: {type(error).__name__}: {error}", place)


def attempt(function: Callable[..., Any], task: Task) -> Any:
    """What the function returns, or Failed. Raises ENDS_ALL."""
    try:
        return function(*task)
    except ENDS_ALL:
        raise
    except Exception as error:
        return failure(error)


class InProcess:
    """One task after the other, here."""

    def run(self, function: Callable[..., Any], tasks: Sequence[Task]) -> Iterator[tuple[int, Any]]:
        for place, task in enumerate(tasks):
            yield place, attempt(function, task)

    def close(self) -> None:
        """Nothing is held."""


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    connection: Connection
    task: int | None = None


class LocalWorkers:
    """``count`` worker processes of this machine, started when they are first needed and used until close().

    They are `python -m xprof_py.postprocess.fleet.worker`, not forks: nothing of this process is in them, and a program
    that calls this needs no `if __name__ == "__main__"`. A worker ends when this process does.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._workers: list[_Worker] = []

    def run(self, function: Callable[..., Any], tasks: Sequence[Task]) -> Iterator[tuple[int, Any]]:
        waiting = deque(range(len(tasks)))
        begun = [0] * len(tasks)
        left = len(tasks)
        while left:
            while len(self._workers) < min(self._count, left):
                self._workers.append(_start())
            for worker in self._workers:
                if worker.task is None and waiting:
                    worker.task = waiting.popleft()
                    begun[worker.task] += 1
                    # A worker that died while idle is noticed below, as one that dies at work.
                    with contextlib.suppress(OSError):
                        worker.connection.send((function, tasks[worker.task]))
            busy = {worker.connection: worker for worker in self._workers if worker.task is not None}
            for connection in wait(list(busy)):
                worker = busy[connection]  # type: ignore[index]
                place = worker.task
                assert place is not None
                try:
                    result = worker.connection.recv()
                except (EOFError, OSError):
                    died = self._buried(worker)
                    if begun[place] < ATTEMPTS:
                        waiting.append(place)
                        continue
                    result = Failed(f"a worker process {died}, {ATTEMPTS} times, while it was analysed")
                worker.task = None
                left -= 1
                if isinstance(result, ENDS_ALL):
                    raise result
                yield place, result

    def close(self) -> None:
        """End the workers, whatever they do."""
        for worker in self._workers:
            worker.connection.close()
            worker.process.kill()
            worker.process.wait()
        self._workers.clear()

    def _buried(self, worker: _Worker) -> str:
        self._workers.remove(worker)
        worker.connection.close()
        code = worker.process.wait()
        return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"


def _start() -> _Worker:
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "xprof_py.postprocess.fleet.worker", str(theirs.fileno())]
    with theirs:
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
    return _Worker(process, Connection(ours.detach()))


class OnDask:
    """A Dask cluster: ``where`` is the address of its scheduler or a distributed.Client.

    Workers need this package in the same version, and must see the folder of the results (and local inputs) under the
    same names as this machine does.
    """

    def __init__(self, where: Any) -> None:
        try:
            import distributed
        except ImportError as error:
            raise UsageError('--scheduler needs Dask: pip install "xprof_py[dask]"') from error
        self._owned = isinstance(where, str)
        if self._owned:
            # Of a lost scheduler it logs tracebacks; the error that follows says what to do.
            for name in ("distributed", "distributed.client", "tornado"):
                logging.getLogger(name).setLevel(logging.CRITICAL)
        try:
            self._client = distributed.Client(where, timeout="10s") if isinstance(where, str) else where
        except (OSError, ValueError) as error:
            raise XprofPyError(f"no Dask scheduler answers at {where}: {error}") from error

    def run(self, function: Callable[..., Any], tasks: Sequence[Task]) -> Iterator[tuple[int, Any]]:
        left = set(range(len(tasks)))
        try:
            for place, result in self._finished(function, tasks):
                left.discard(place)
                yield place, result
        except SpoolError:
            raise
        except (OSError, CancelledError) as error:
            # A connection that is closed is an OSError to Dask.
            raise self._gone(len(left), len(tasks)) from error
        if left:
            raise self._gone(len(left), len(tasks))

    def _finished(self, function: Callable[..., Any], tasks: Sequence[Task]) -> Iterator[tuple[int, Any]]:
        """Results as they come. Ends early where the client has lost its scheduler."""
        import distributed

        # pure=False: Dask would keep the results of files by their names, we keep them by their content.
        futures = [self._client.submit(attempt, function, task, pure=False) for task in tasks]
        places = {future.key: place for place, future in enumerate(futures)}
        for future in distributed.as_completed(futures):
            if future.status not in ("finished", "error"):
                # Cancelled or lost: the client does that to all of them when its scheduler goes away.
                return
            error = future.exception()
            if isinstance(error, ENDS_ALL):
                raise error
            result = future.result() if error is None else Failed(f"its Dask worker failed: {error}")
            yield places[future.key], result

    def _gone(self, left: int, of: int) -> XprofPyError:
        return XprofPyError(f"the Dask scheduler is gone, {left} of {of} tasks were unfinished. {GO_ON}")

    def close(self) -> None:
        """A client that was given stays open."""
        if self._owned:
            # Without its scheduler it cannot say goodbye.
            with contextlib.suppress(OSError, TimeoutError, CancelledError):
                self._client.close(timeout=1)
