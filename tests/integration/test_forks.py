"""A program that forks while it is recorded: no child waits for something that only a thread of its parent can give."""

from __future__ import annotations

from typing import Any

FORKS = """
import faulthandler, os, signal, sys, threading, time
from xprof_py import capture, session, step, trace
RUN = sys.argv[1]

def child_ends(in_child):
    # Whether a forked child comes to its end. One that hangs says where, if it came as far as that, and is killed.
    pid = os.fork()
    if pid == 0:
        faulthandler.dump_traceback_later(15, exit=True)
        in_child()
        os._exit(0)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status == 0
        time.sleep(0.0005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return False
"""


def test_two_hundred_forks_while_four_threads_record(program: Any) -> None:
    outcome = program(
        FORKS
        + """
stop = False

def record(k):
    i = 0
    while not stop:
        with step(i, name=f"thread {k}"), trace(f"span {i % 977}", layer=i):
            i += 1

def begin_and_end_threads():
    while not stop:
        short = threading.Thread(target=lambda: trace("short").__enter__().__exit__(None, None, None))
        short.start()
        short.join()

def spans():
    with step(1), trace("in the child"):
        pass

def own_capture():
    with capture(f"{RUN}-child-{os.getpid()}", xla=False), step(2):
        time.sleep(0.03)

with capture(RUN, xla=False):
    threads = [threading.Thread(target=record, args=(k,)) for k in range(3)]
    threads.append(threading.Thread(target=begin_and_end_threads))
    for thread in threads: thread.start()
    ended = sum(child_ends(own_capture if n % 20 == 0 else spans) for n in range(200))
    stop = True
    for thread in threads: thread.join()
print(ended)
""",
        "-W",
        "ignore",
        timeout_s=230,
    )
    assert outcome.stdout == "200\n"
    assert outcome.document()["state"] == "finished"


def test_a_child_does_not_wait_for_locks_that_the_parents_threads_held(program: Any) -> None:
    outcome = program(
        FORKS
        + """
with capture(RUN, xla=False):
    opened = session._slot._open
    held = [opened._lock, opened.recording._lock, opened.recording._xla_end, opened.recording._done._cond,
            opened.recording._host_stopped._cond, session._slot._lock]
    ready, leave = threading.Event(), threading.Event()

    def hold():
        for lock in held: lock.acquire()
        ready.set()
        leave.wait()
        for lock in held: lock.release()

    holder = threading.Thread(target=hold)
    holder.start()
    ready.wait()

    def in_child():
        with step(1): pass
        opened.close(None)
        with capture(RUN + "-child", xla=False), step(2): pass

    print(child_ends(in_child))
    leave.set()
    holder.join()
""",
        "-W",
        "ignore",
    )
    assert outcome.stdout == "True\n"
    assert outcome.document()["state"] == "finished"
