"""A worker process of schedulers.LocalWorkers: `python -m xprof_py.postprocess.fleet.worker FD`.

Receives (function, arguments), sends back what it returns, until the other end of the socket closes.
"""

from __future__ import annotations

import signal
import sys
from multiprocessing.connection import Connection
from typing import Any

import pyarrow as pa

from xprof_py.postprocess.fleet.schedulers import ENDS_ALL, Failed, attempt


def serve(connection: Connection) -> None:
    """Run tasks until the connection closes."""
    while True:
        try:
            function, task = connection.recv()
        except (EOFError, OSError):
            return
        result: Any
        try:
            result = attempt(function, task)
        except ENDS_ALL as error:
            result = error
        try:
            connection.send(result)
        except (BrokenPipeError, ConnectionResetError):
            return
        except Exception as error:
            connection.send(Failed(f"its result cannot be sent: {type(error).__name__}: {error}"))


if __name__ == "__main__":
    # ctrl-c reaches the whole terminal: it is for the process that started this one to act on it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # There are as many workers as cores: threads within them would only wait for one another.
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    # As in cli/analyze.py.
    pa.set_memory_pool(pa.system_memory_pool())
    serve(Connection(int(sys.argv[1])))
