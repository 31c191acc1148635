"""torch.profiler inside a capture: its traces are kept, the GPUs are lent to it, and PyTorch is left as it was.

PyTorch is a double (fake_torch.py); test_torch_profiler_live.py has the real one. So is the GPU.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fake_gpu
import fake_torch
import pytest

Run = Callable[..., Any]


@pytest.fixture
def torch_program(program: Run, tmp_path: Path) -> Run:
    head = f"""
import sys, os
sys.path[:0] = [{str(fake_torch.write(tmp_path / "path"))!r}, {str(fake_gpu.HERE)!r}]
from xprof_py import capture, step
RUN = sys.argv[1]
"""
    return lambda source, **more: program(head + source, **more)


def copies(outcome: Any) -> list[str]:
    return sorted(path.name.split("-", 2)[2] for path in (outcome.run / "torch").glob("*"))


def told(outcome: Any) -> dict[str, Any]:
    found: dict[str, Any] = outcome.document()["collectors"]["torch"]
    return found


def test_every_trace_that_is_exported_is_kept_and_the_programs_own_stays(torch_program: Run, tmp_path: Path) -> None:
    outcome = torch_program(
        """
import torch
with capture(RUN):
    for name in ("a.json", "b.json.gz"):
        with torch.profiler.profile() as profile:
            pass
        profile.export_chrome_trace(name)
    with torch.autograd.profiler.profile() as alone:
        pass
    assert alone.export_chrome_trace("c.json") == "exported"
assert torch.autograd.profiler.calls == ["prepare", "end", "export"] * 3
"""
    )
    assert copies(outcome) == ["0.pt.trace.json", "1.pt.trace.json.gz", "2.pt.trace.json"]
    assert [Path(trace["path"]).name for trace in told(outcome)["traces"]] == ["a.json", "b.json.gz", "c.json"]
    assert all(trace["copied"] for trace in told(outcome)["traces"])
    files = outcome.document()["files"]["torch"]
    assert [(outcome.run / name).read_bytes() for name in files] == [
        (tmp_path / name).read_bytes() for name in ("a.json", "b.json.gz", "c.json")
    ]


def test_a_trace_that_is_exported_twice_is_one(torch_program: Run) -> None:
    outcome = torch_program(
        """
import torch
with capture(RUN):
    with torch.profiler.profile() as profile:
        pass
    profile.export_chrome_trace("a.json")
    profile.export_chrome_trace("b.json")
"""
    )
    assert copies(outcome) == ["0.pt.trace.json"]


def test_a_copy_that_failed_is_tried_again_with_the_next_export_and_takes_none_of_the_budget(
    torch_program: Run,
) -> None:
    """The first copy breaks off on a full disk; the budget is that of one trace. The second export is of the same
    events: it takes the first one's place, or they would be read twice."""
    outcome = torch_program(
        """
import errno, shutil, torch
from xprof_py.collectors import torch_profiler
copyfile = shutil.copyfile
def full(source, place):
    open(place, "w").write("{")
    raise OSError(errno.ENOSPC, "No space left on device")
with capture(RUN):
    with torch.profiler.profile() as profile:
        pass
    shutil.copyfile = full
    profile.export_chrome_trace("a.json")
    shutil.copyfile = copyfile
    torch_profiler.BUDGET_BYTES = os.stat("a.json").st_size
    profile.export_chrome_trace("b.json")
    profile.export_chrome_trace("c.json")
"""
    )
    assert copies(outcome) == ["0.pt.trace.json"]
    assert [(Path(trace["path"]).name, trace["copied"]) for trace in told(outcome)["traces"]] == [("b.json", True)]
    assert told(outcome)["failed"] == 1


def test_torch_may_be_imported_in_the_capture_and_is_left_as_it_was(torch_program: Run) -> None:
    outcome = torch_program(
        """
finders = list(sys.meta_path)
with capture(RUN):
    import torch
    inner, outer = torch.autograd.profiler.profile, torch.profiler.profiler._KinetoProfile
    assert hasattr(inner.export_chrome_trace, "__wrapped__")
    originals = [vars(inner)[n].__wrapped__ for n in ("export_chrome_trace", "_prepare_trace", "__exit__")]
    with torch.profiler.profile() as profile:
        pass
    profile.export_chrome_trace("a.json")
assert [vars(inner)[n] for n in ("export_chrome_trace", "_prepare_trace", "__exit__")] == originals
assert not hasattr(outer.export_chrome_trace, "__wrapped__")
assert sys.meta_path == finders
profile.export_chrome_trace("later.json")
"""
    )
    assert copies(outcome) == ["0.pt.trace.json"]


def test_a_program_without_torch_gets_none(torch_program: Run) -> None:
    outcome = torch_program("with capture(RUN): pass\nassert 'torch' not in sys.modules")
    assert told(outcome) == {"used": False, "why": "torch is not imported"}
    assert not (outcome.run / "torch").exists()


def test_an_export_that_fails_fails_as_it_did_and_costs_nothing_else(torch_program: Run) -> None:
    outcome = torch_program(
        """
import torch
with capture(RUN):
    with torch.profiler.profile() as profile:
        pass
    try:
        profile.export_chrome_trace("no/such/folder/a.json")
    except FileNotFoundError:
        print("as it was")
    profile.export_chrome_trace("a.json")
"""
    )
    assert outcome.stdout == "as it was\n"
    assert copies(outcome) == ["0.pt.trace.json"]


def test_what_is_past_the_budget_is_named_and_stays_in_its_place(torch_program: Run) -> None:
    outcome = torch_program(
        """
import torch
from xprof_py.collectors import torch_profiler
torch_profiler.BUDGET_BYTES = 60
with capture(RUN):
    for name in ("a.json", "b.json"):
        with torch.profiler.profile() as profile:
            pass
        profile.export_chrome_trace(name)
"""
    )
    assert copies(outcome) == ["0.pt.trace.json"]
    first, second = told(outcome)["traces"]
    assert first["copied"]
    assert not second["copied"]
    assert "not copied" in second["why"]


def test_the_rank_that_is_known_in_the_end_names_the_copies(torch_program: Run) -> None:
    outcome = torch_program(
        """
import torch
with capture(RUN):
    with torch.profiler.profile() as profile:
        pass
    profile.export_chrome_trace("a.json")
    os.environ.update(RANK="3", WORLD_SIZE="4")
"""
    )
    (name,) = outcome.document()["files"]["torch"]
    assert name.startswith("torch/3-")
    assert (outcome.run / name).exists()


def test_a_run_that_is_overwritten_loses_the_copies_of_the_one_before(torch_program: Run, tmp_path: Path) -> None:
    source = """
import torch
with capture(RUN, overwrite=True):
    for name in ("a.json", "b.json")[: int(os.environ["COUNT"])]:
        with torch.profiler.profile() as profile:
            pass
        profile.export_chrome_trace(name)
"""
    torch_program(source, COUNT="2")
    outcome = torch_program(source, COUNT="1")
    assert copies(outcome) == ["0.pt.trace.json"]


@pytest.fixture(scope="module")
def fakes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_gpu.build(tmp_path_factory.mktemp("fake_gpu"))


LENT = """
import torch
from fake_gpu import FakeGpu, load_driver
FAKES = os.environ["FAKES"]
load_driver(FAKES)
gpu = FakeGpu(FAKES, os.environ.get("VARIANT", "both"))
"""


def gpu_environment(fakes: Path) -> dict[str, str]:
    return {"FAKES": str(fakes), "XPROF_CUPTI_LIB": str(fakes / "libfake_cupti_both.so")}


def test_cupti_is_lent_while_kineto_records_gpus_and_taken_back(torch_program: Run, fakes: Path) -> None:
    outcome = torch_program(
        LENT
        + """
with capture(RUN):
    gpu.launches("before", 1, 10)
    with torch.profiler.profile(use_device="cuda") as profile:
        assert gpu.get("subscribed") == 0 and gpu.get("enabled") == 0
        gpu.hold("Kineto")
        gpu.launches("theirs", 11, 10)
        gpu.hold(None)
    assert gpu.get("subscribed") == 1
    gpu.drop(3)
    gpu.launches("after", 21, 10)
    with torch.profiler.profile() as of_the_host:
        assert gpu.get("subscribed") == 1
assert gpu.get("subscribed") == 0
""",
        **gpu_environment(fakes),
    )
    entry = outcome.document()["collectors"]["cuda"]
    assert entry["used"]
    (lent,) = entry["lent"]
    assert lent["to"] == "torch.profiler"
    assert entry["start"]["realtime_ns"] < lent["start"]["realtime_ns"] < lent["stop"]["realtime_ns"]
    totals = outcome.document()["overhead"]["cuda"]
    assert (totals["activities"], totals["calls"], totals["dropped"]) == (20, 20, 3)


def test_a_cupti_that_is_not_given_back_is_said(torch_program: Run, fakes: Path) -> None:
    outcome = torch_program(
        LENT
        + """
with capture(RUN):
    gpu.launches("before", 1, 10)
    with torch.profiler.profile(use_device="cuda") as profile:
        gpu.hold("Kineto")
""",
        XPROF_CUPTI_LIB=str(fakes / "libfake_cupti_named.so"),
        FAKES=str(fakes),
        VARIANT="named",
    )
    entry = outcome.document()["collectors"]["cuda"]
    assert entry["used"]
    assert "Kineto" in entry["why"]
    assert "what the GPUs did after torch.profiler is not recorded" in outcome.messages()
    assert outcome.document()["overhead"]["cuda"]["activities"] == 10


def test_json_of_the_run_file_holds_all_of_it(torch_program: Run) -> None:
    outcome = torch_program("import torch\nwith capture(RUN): pass")
    assert json.loads(json.dumps(told(outcome))) == {"used": True, "traces": [], "failed": 0, "copy_s": 0.0}
