"""XPROF_PY_SWAP=1: decorated functions stay themselves and record through their own slot (CPython 3.12 and later).

Each claim is a program, because the switch is read once in a process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

import pytest

from xprof_py.postprocess.readers.shard import read_shard

needs_slots = pytest.mark.skipif(
    sys.version_info < (3, 12), reason="functions have no slot that every call asks for: run with Python 3.12 or later"
)
HEAD = "import sys, threading, types\nfrom xprof_py import _native, checkpoint, trace\nSHARD = sys.argv[1]\n"


def run(tmp_path: Path, program: str, *options: str, swap: str = "1") -> tuple[Counter[str], str]:
    """Names in the shard with their counts, and stderr; the program ends well."""
    command = [sys.executable, *options, "-c", HEAD + textwrap.dedent(program), str(tmp_path / "x.xpr")]
    environment = {**os.environ, "XPROF_PY_SWAP": swap}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    shard = tmp_path / "x.xpr"
    names = read_shard(shard)["events"]["name"].to_pylist() if shard.exists() else []
    return Counter(names), done.stderr


@needs_slots
def test_the_function_stays_itself_and_call_sites_that_have_specialised_record(tmp_path: Path) -> None:
    names, stderr = run(
        tmp_path,
        """
        def plain(x, *, y=2):
            return x + y
        assert trace(plain) is plain and type(plain) is types.FunctionType

        class Model:
            @trace
            def method(self, x): return x
            @property
            @trace
            def prop(self): return 5
            @trace
            def __getitem__(self, i): return i
            @trace
            def __call__(self): return 6
            @trace
            def __init__(self): self.made = True
            @classmethod
            @trace
            def made_by(cls): return cls()
            @trace
            @staticmethod
            def static(x): return x

        def use(times):
            for i in range(times):
                model = Model.made_by()
                assert plain(i) == i + 2 and plain(*(i,), **{"y": 3}) == i + 3 and plain(x=i) == i + 2
                assert (model.method(i), model.prop, model[i], model(), Model.static(i)) == (i, 5, i, 6, i)
                assert list(map(plain, (1, 2))) == [3, 4] and sorted([2, 1], key=plain) == [1, 2]

        use(1000)  # the call sites are specialised by now
        for k in range(2):
            _native.recorder_start(SHARD)
            use(1000)
            totals = _native.recorder_stop()
            assert totals["recorded"] == totals["written"] == 1000 * 14 and totals["reentered"] == 0, totals
            use(1000)
        """,
    )
    assert stderr == ""
    kinds = ("method", "prop", "__getitem__", "__call__", "__init__", "made_by", "static")
    assert names == {"plain": 7000, **{f"Model.{kind}": 1000 for kind in kinds}}


@needs_slots
def test_exceptions_recursion_threads_and_a_stop_inside_the_call(tmp_path: Path) -> None:
    names, stderr = run(
        tmp_path,
        """
        @trace("fails", layer=3)
        def fails(error):
            raise error
        @trace
        def down(n):
            return 0 if n == 0 else 1 + down(n - 1)
        @checkpoint
        def stops():
            return _native.recorder_stop()
        _native.recorder_start(SHARD)
        mine = ValueError("mine")
        try:
            fails(mine)
        except ValueError as error:
            assert error is mine and error.__context__ is None
        threads = [threading.Thread(target=down, args=(20,)) for _ in range(4)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        @trace
        def made_while_recording(): pass
        made_while_recording()
        assert stops()["open_not_recorded"] == 0
        assert down(3) == 3
        """,
    )
    assert (names, stderr) == ({"fails": 1, "down": 4 * 21, "made_while_recording": 1, "stops": 1}, "")


@needs_slots
def test_functions_of_any_other_kind_are_wrapped_as_without_it(tmp_path: Path) -> None:
    names, stderr = run(
        tmp_path,
        """
        import asyncio, functools
        @trace
        async def awaited(): return 1
        @trace
        def generated(): yield 2
        @trace
        @trace("inner")
        def twice(): return 3
        partial = trace("partial")(functools.partial(int, "4"))
        @functools.wraps(twice)
        def copies(): return twice()
        copies = trace("copies")(copies)
        length = trace("length")(len)
        _native.recorder_start(SHARD)
        assert [asyncio.run(awaited()), *generated(), twice(), partial(), length([0] * 5)] == [1, 2, 3, 4, 5]
        assert copies() == 3
        _native.recorder_stop()
        """,
    )
    assert names == {"awaited": 1, "generated": 1, "twice": 2, "inner": 2, "partial": 1, "copies": 1, "length": 1}
    assert stderr == ""


@needs_slots
def test_functions_and_what_they_hold_are_collected(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
        import gc, weakref
        class Held: pass
        def make():
            held = Held()
            @trace("cycle", held=[held])
            def inner(): return held
            held.inner = inner
            assert type(inner) is types.FunctionType
            return weakref.ref(inner), weakref.ref(held)
        kept = [make() for _ in range(100)]
        gc.collect()
        assert all(ref() is None for pair in kept for ref in pair)
        _native.recorder_start(SHARD)  # walks the list of those that are left
        for _ in range(100): make()
        gc.collect()
        assert _native.recorder_stop()["recorded"] == 0
        """,
    )


@needs_slots
def test_pickles_by_name_and_a_copy_by_value_is_the_plain_function(tmp_path: Path) -> None:
    pytest.importorskip("cloudpickle", reason="cloudpickle is not installed: the extra `test` brings it")
    names, _ = run(
        tmp_path,
        """
        import cloudpickle, pickle
        @trace
        def double(x): return 2 * x
        assert pickle.loads(pickle.dumps(double)) is double
        def make():
            @trace
            def local(x): return 3 * x
            return local
        copy = pickle.loads(cloudpickle.dumps(make()))
        _native.recorder_start(SHARD)
        assert (double(2), copy(2), make()(2)) == (4, 6, 6)
        _native.recorder_stop()
        """,
    )
    assert names == {"double": 1, "local": 1}


@needs_slots
def test_the_child_of_a_fork_calls_its_functions_plainly_and_may_record_itself(tmp_path: Path) -> None:
    names, _ = run(
        tmp_path,
        """
        import os
        @trace
        def called(): return 1
        _native.recorder_start(SHARD)
        called()
        child = os.fork()
        if child == 0:
            assert called() == 1
            _native.recorder_start(SHARD + ".child")
            called()
            os._exit(0 if _native.recorder_stop()["written"] == 1 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        called()
        assert _native.recorder_stop()["written"] == 2
        """,
        "-W",
        "ignore",
    )
    assert names == {"called": 2}


def test_a_switch_that_cannot_be_followed_says_so_and_traces_as_ever(tmp_path: Path) -> None:
    program = """
    @trace
    def called(): return 1
    @trace
    def too(): return 2
    _native.recorder_start(SHARD)
    assert called() + too() == 3
    _native.recorder_stop()
    """
    names, stderr = run(tmp_path, program, swap="maybe")
    assert (names, stderr.count("functions are not swapped")) == ({"called": 1, "too": 1}, 1)
    names, stderr = run(tmp_path, program, swap="0")
    assert (names, stderr) == ({"called": 1, "too": 1}, "")
    if sys.version_info < (3, 12):
        names, stderr = run(tmp_path, program)
        assert (names, stderr.count("XPROF_PY_SWAP needs Python 3.12")) == ({"called": 1, "too": 1}, 1)
