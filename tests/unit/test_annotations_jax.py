"""trace and scope in programs that use JAX."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from xprof_py import _native, annotations
from xprof_py.annotations import scope, trace
from xprof_py.collectors.xla import XlaProfiler
from xprof_py.postprocess.readers.shard import read_shard

jax = pytest.importorskip("jax", reason="jax is not installed: the extra `test` brings it")


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where a recording that has begun goes to; no warning has been given yet."""
    monkeypatch.setattr(annotations, "_warned", False)
    _native.recorder_start(tmp_path / "x.xpr")
    yield tmp_path / "x.xpr"
    _native.recorder_stop()


def test_trace_under_a_tracer_warns_once_and_at_its_own_line(path: Path) -> None:
    @jax.jit
    def compiled(x: float) -> float:
        with trace("inside"):
            x = x + 1
        with trace("inside too"):
            return x

    with pytest.warns(RuntimeWarning, match="trace\\('inside'\\) runs while jax traces") as caught:
        assert compiled(1.0) == 2.0
    assert [warning.filename for warning in caught] == [__file__]


def test_the_warning_as_an_error_does_not_reach_the_program(path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert jax.jit(trace("inside")(lambda x: x + 1))(1.0) == 2.0
    assert _native.recorder_stop()["hook_errors"] == 1


def test_trace_around_compiled_code_does_not_warn(path: Path) -> None:
    @trace("around")
    @jax.jit
    def compiled(x: float) -> float:
        return x + 1

    assert compiled(1.0) == 2.0
    assert compiled.lower(1.0).as_text()  # the jitted function's own methods are still there
    assert jax.jit(compiled)(3.0) == 4.0
    _native.recorder_stop()
    assert set(read_shard(path)["events"]["name"].to_pylist()) == {"around"}


def test_scope_names_the_host_span_and_the_operations(path: Path) -> None:
    def body(x: float) -> float:
        with scope("attention"):
            return jax.numpy.sin(x)

    @scope("loss")
    def loss(x: float) -> float:
        return jax.numpy.cos(body(x))

    text = jax.jit(loss).lower(1.0).as_text(debug_info=True)
    assert "loss/attention/sin" in text
    assert "loss/cos" in text
    with scope("on the host"):
        pass
    _native.recorder_stop()
    # Under jit scope only names operations: the host's time there is tracing.
    assert read_shard(path)["events"]["name"].to_pylist() == ["on the host"]


def test_an_array_as_argument_is_not_waited_for(path: Path) -> None:
    with trace("x", loss=jax.numpy.float32(1.0)):
        pass
    _native.recorder_stop()
    assert read_shard(path)["texts"]["text"].to_pylist() == ["<jaxlib._jax.ArrayImpl>"]


def test_a_pause_for_garbage_while_jax_traces_is_no_span_of_the_program(path: Path) -> None:
    @jax.jit
    def compiled(x: float) -> float:
        _native.record_past("gc", 8, 200_000, generation=2)
        _native.record_past("/jax/core/compile/jaxpr_trace_duration", 7, 1_000)
        return x

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compiled(1.0) == 1.0
    _native.recorder_stop()
    assert "gc" in read_shard(path)["events"]["name"].to_pylist()
    assert not annotations._warned


def test_the_marker_of_a_step_says_what_jax_s_own_says(tmp_path: Path) -> None:
    """The marker is made past StepTraceAnnotation's constructor, so it is compared with what that one writes."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    jax.profiler.start_trace(str(tmp_path), profiler_options=options)
    with jax.profiler.StepTraceAnnotation("theirs", step_num=3, xprof_tid=5):
        pass
    with XlaProfiler.step_marker()("ours", step_num=3, xprof_tid=5):
        pass
    jax.profiler.stop_trace()
    (file,) = tmp_path.rglob("*.xplane.pb")
    found = {
        event.name: dict(event.stats)
        for plane in jax.profiler.ProfileData.from_file(str(file)).planes
        for line in plane.lines
        for event in line.events
        if event.name in ("ours", "theirs")
    }
    assert found["ours"] == found["theirs"]
    assert found["ours"]["step_num"] == 3
    assert found["ours"]["_r"] == 1


def test_every_transformation_of_a_decorated_function_is_the_plain_one_s_and_warns_once_in_all(path: Path) -> None:
    def plain(x: float) -> float:
        return jax.numpy.sin(x) * x

    @trace("decorated", layer=1)
    def decorated(x: float) -> float:
        with trace("inside"):
            return plain(x)

    def looped(function: Any, x: float) -> Any:
        return jax.lax.scan(lambda carry, _: (function(carry), function(carry)), x, None, length=3)

    xs = jax.numpy.arange(4.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for function in (jax.jit(decorated), decorated, trace("above")(jax.jit(decorated))):
            assert function(0.5) == pytest.approx(plain(0.5))
            assert jax.grad(function)(0.5) == pytest.approx(jax.grad(plain)(0.5))
            assert jax.vmap(function)(xs).tolist() == pytest.approx(jax.vmap(plain)(xs).tolist())
            assert looped(function, 0.5)[1].tolist() == pytest.approx(looped(plain, 0.5)[1].tolist())
    # Of the name's first use in the recording: asking JAX at every span would cost more than the span.
    assert [str(warning.message).partition(" ")[0] for warning in caught] == ["trace('decorated')"]
    totals = _native.recorder_stop()
    assert (totals["reentered"], totals["hook_errors"], totals["open_not_recorded"]) == (0, 0, 0)
    assert set(read_shard(path)["events"]["name"].to_pylist()) <= {"decorated", "inside", "above", "gc"}
