"""Annotations in programs that use torch.compile: results are right, and a decorated function never breaks a graph.

The program runs by itself: with torch imported, functions that other tests decorate would be other ones.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from xprof_py.postprocess.readers.shard import read_shard

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed: pip install torch"
)

PROGRAM = """
import inspect, json, pickle, sys, warnings
import torch
from xprof_py import _native, counter, mark, scope, step, trace

@trace
def decorated(x):
    return x * 2 + 1

@trace("named", layer=3)
def named(x, *, plus=1):
    return x * 2 + plus

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
    @trace
    def forward(self, x):
        return decorated(self.linear(x))

def around(x):
    with trace("with", layer=1):
        x = x * 3
    return x - 1

def in_step(x):
    with step(3), scope("scope"):
        x = x * 3
    return x

def told(x):
    x = x + 1
    mark("mark", n=1)
    counter("counter", 1.0)
    return x * 2

functions = {"decorated": decorated, "named": named, "caller": lambda x: named(decorated(x + 1), plus=5) - 1,
             "model": Model(), "around": around, "in_step": in_step, "told": told}
x = torch.arange(4.0)
recording = len(sys.argv) > 1
if recording:
    _native.recorder_start(sys.argv[1])
found = {}
for name, function in functions.items():
    expected = function(x)
    row = found[name] = {}
    for whole in (False, True):
        torch._dynamo.reset()
        graphs = []
        def backend(module, inputs):
            graphs.append(module)
            return module.forward
        compiled = torch.compile(function, backend=backend, fullgraph=whole)
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                right = all(torch.equal(compiled(x), expected) for _ in range(3))
        except torch._dynamo.exc.Unsupported as error:
            right, caught = type(error).__name__, []
        row["whole" if whole else "parts"] = [right, len(graphs), [str(w.message).splitlines()[0] for w in caught]]
compiled = torch.compile(lambda x: torch.sin(x) + 1, backend="eager")
outside = trace("outside")(compiled)
with trace("around it"):
    found["outside"] = torch.equal(outside(x), torch.sin(x) + 1)
found["signature"] = str(inspect.signature(named))
found["pickled"] = pickle.loads(pickle.dumps(named)) is named
found["totals"] = _native.recorder_stop() if recording else {}
print(json.dumps(found))
"""


@pytest.fixture(scope="module", params=[False, True], ids=["off", "on"])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], list[str]]:
    shard: Path = tmp_path_factory.mktemp("torch") / "x.xpr"
    arguments = [str(shard)] if request.param else []
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    names = read_shard(shard)["events"]["name"].to_pylist() if request.param else []
    return json.loads(done.stdout.splitlines()[-1]), names


@pytest.mark.parametrize("name", ["decorated", "named", "caller", "model"])
def test_a_decorated_function_is_one_graph_with_the_plain_function_s_result(name: str, found: Any) -> None:
    assert found[0][name] == {"parts": [True, 1, []], "whole": [True, 1, []]}


@pytest.mark.parametrize("name", ["around", "in_step", "told"])
def test_what_stands_inside_breaks_the_graph_and_changes_no_result(name: str, found: Any) -> None:
    """Torch says so of the whole graph that was asked for; otherwise the parts are right."""
    right, _, warned = found[0][name]["parts"]
    assert right is True
    assert [text for text in warned if "xprof_py" not in text] == []
    assert found[0][name]["whole"][0] == "Unsupported"


def test_compiled_functions_can_be_decorated(found: Any) -> None:
    assert found[0]["outside"] is True


def test_the_function_stays_what_it_was(found: Any) -> None:
    assert (found[0]["signature"], found[0]["pickled"]) == ("(x, *, plus=1)", True)


def test_spans_are_recorded_where_python_runs_and_never_from_a_graph(found: Any) -> None:
    values, names = found
    if not values["totals"]:
        assert names == []
        return
    assert {name: values["totals"][name] for name in ("reentered", "hook_errors", "open_not_recorded", "dropped")} == {
        "reentered": 0,
        "hook_errors": 0,
        "open_not_recorded": 0,
        "dropped": 0,
    }
    # Called plainly once each, and by "caller" and "model"; not by the 24 calls of the compiled ones.
    assert names.count("decorated") == 3
    assert names.count("named") == 2
    assert names.count("Model.forward") == 1
    # What breaks the graph runs every time: plainly, and three times between the parts.
    assert [names.count(name) for name in ("with", "train", "scope", "mark", "counter")] == [4] * 5
    assert [names.count(name) for name in ("outside", "around it")] == [1, 1]
