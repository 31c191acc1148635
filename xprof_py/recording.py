"""One recording: collectors started, the end drained, files written behind the program's back, the run file kept true.

Nothing here raises into the program: what goes wrong becomes a message, in the run file and on stderr.
"""

from __future__ import annotations

import contextlib
import copy
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from xprof_py import _native
from xprof_py.collectors.cuda import STOP_TIMEOUT_S as CUDA_STOP_TIMEOUT_S
from xprof_py.collectors.cuda import CudaCollector
from xprof_py.collectors.drain import drain, fence
from xprof_py.collectors.hlo_modules import HloModules
from xprof_py.collectors.host import HostRecorder
from xprof_py.collectors.monitoring import CompileListener
from xprof_py.collectors.pjrt import PjrtProfiler, loaded_plugins
from xprof_py.collectors.torch_profiler import TorchProfiler
from xprof_py.collectors.xla import XlaError, XlaProfiler, XlaResult
from xprof_py.config import Settings
from xprof_py.messages import warn
from xprof_py.rank import settled_rank
from xprof_py.run_file import clock_pair, first_document, identity, versions
from xprof_py.run_folder import RunFolder
from xprof_py.side_collectors import SideCollectors

# The recorder's own end: its thread writes what the rings still hold. A disk that takes longer keeps the rest.
RECORDER_STOP_TIMEOUT_S = 5.0
# How long the program waits for XLA to stop taking events, so that what follows the capture stays out of it.
XLA_EDGE_TIMEOUT_S = 1.0
# How long after its limit XLA's profiler waits for a step to end.
XLA_GRACE_S = 10.0
# How often a program that does not use CUDA yet is looked at, where it could.
CUDA_POLL_S = 0.25


class Recording:
    """A capture of this process, from its claimed folder to its last file.

    States: armed, recording, stopping, then finished, failed (nothing could be recorded) or not_started (the steps
    never came).
    """

    def __init__(self, folder: RunFolder, settings: Settings, capture: dict[str, Any]) -> None:
        """Args: ``folder``: not claimed yet; ``capture``: the run file's ``capture``."""
        self.folder = folder
        self.settings = settings
        self._lock = threading.RLock()
        self._done = threading.Event()
        self._host_stopped = threading.Event()
        self._host = HostRecorder(settings, capture.get("seconds", 0.0))
        self._host_totals: dict[str, Any] | None = None
        self._compiles = CompileListener(self._compiled)
        self._programs = HloModules()
        self._cuda = CudaCollector(settings)
        self._torch = TorchProfiler(folder.torch_trace, self._lend_cuda, self._take_cuda_back)
        self._xla: XlaProfiler | PjrtProfiler = XlaProfiler(folder.session, settings.host_tracer_level)
        self._threads: set[int] = set()
        self._marked_early = -1
        self._xla_end = threading.Lock()
        self._xla_limit: threading.Timer | None = None
        self._xla_is_due = False
        self.when_xla_is_due: Callable[[], None] | None = None
        self.when_xla_starts: Callable[[], None] | None = None
        self.when_host_stopped: Callable[[], None] | None = None
        self._xla_pending = settings.xla is not False
        self._began = time.monotonic()
        self.state = "armed"
        self.document = first_document(folder, capture)
        self._collectors: dict[str, Any] = self.document["collectors"]
        self._collectors["host"] = {"used": False, "why": "not started"}
        self._collectors["xla"] = {"used": False, "why": "not started" if self._xla_pending else "switched off"}
        self._collectors["compiles"] = {"used": False, "why": "not started"}
        self._collectors["cuda"] = self._cuda.entry
        self._side = SideCollectors(settings, self.document, self.say)

    def say(self, text: str, severity: str = "warning") -> None:
        """Keep a message in the run file; a warning also reaches stderr."""
        with self._lock:
            self.document["messages"].append({"severity": severity, "message": text})
        if severity != "info":
            warn(text)

    def note_step_times(self, times: dict[str, Any]) -> None:
        """Keep what steps took before, inside and after the recording (observer.py); also when its files are written.

        A run file that was copied away by then stays as it is, without the steps after the recording.
        """
        with self._lock:
            self.document["observer"] = times
            written = self.state == "finished" and not self.folder.staged
        if written:
            self._write(self.state)

    def document_now(self) -> dict[str, Any]:
        """A copy of the run file's fields as they stand."""
        with self._lock:
            return copy.deepcopy(self.document)

    @property
    def is_recording_host(self) -> bool:
        """Whether annotations are being recorded."""
        return self._host.running

    def awaits_devices(self) -> bool:
        """Whether XLA's profiler still waits for the program to have devices."""
        return self._xla_pending and self.state == "recording"

    @property
    def is_open(self) -> bool:
        """Whether there is still something to stop or to wait for."""
        return not self._done.is_set()

    def start(self) -> None:
        """Begin to record: annotations, then compile intervals, then XLA as soon as the program has devices."""
        began = time.perf_counter()
        with self._lock:
            if self.state != "armed":
                return
            self.state = "recording"
            self.document["start"] = clock_pair()
            _native.set_thread_hook(self._thread_seen)
            try:
                self._host.start(os.fspath(self.folder.root / self.folder.shard_name))
                self._collectors["host"] = {"used": True}
                self.document["files"]["shard"] = self.folder.shard_name
            except Exception as error:
                self._collectors["host"] = {"used": False, "why": "could not start", "error": str(error)}
                self.say(f"annotations are not recorded: {error}")
            self._begin_compiles()
            if self._host.running:
                self._side.start()
                self._torch.start()
            self._begin_cuda()
            self.try_xla()
            self.document["overhead"]["start_s"] = round(time.perf_counter() - began, 6)
        self._write("recording")

    def try_xla(self) -> None:
        """Start XLA's profiler if it is wanted, not running yet, and the program has devices by now.

        JAX's where the program uses JAX, else that of a PJRT plugin that it has loaded: they are one tracer.
        """
        if not self._xla_pending or not self._lock.acquire(blocking=False):
            return
        try:
            if sys.modules.get("jax") is None:
                plugins = loaded_plugins()
                if not plugins:
                    return
                self._xla = PjrtProfiler(plugins, self.settings.host_tracer_level)
            self._begin_compiles()
            if self.state == "recording" and self._xla_pending and self._xla.can_start():
                # First who has the devices, then the profiler that could take them.
                self._try_cuda()
                self._xla_pending = False
                self._start_xla()
        finally:
            self._lock.release()

    def _compiled(self) -> None:
        """Called at each compile, on its thread: the program may have devices now, and a program that dies soon."""
        self.try_xla()
        if self._collectors.get("cuda", {}).get("used"):
            self._programs.take_newest()

    def _begin_compiles(self) -> None:
        if not self._collectors["compiles"]["used"] and self._host.running:
            try:
                if self._compiles.start():
                    self._collectors["compiles"] = {"used": True}
                else:
                    self._collectors["compiles"]["why"] = "JAX is not imported"
            except Exception as error:
                self._collectors["compiles"] = {"used": False, "why": "could not start", "error": str(error)}

    def _begin_cuda(self) -> None:
        """Start the collector of device activity, or look now and then whether the program has come to use CUDA."""
        if not self._host.running:
            return
        self._told_by_cuda(self._cuda.begin(self._xla_has_devices()))
        if self._cuda.pending:
            with contextlib.suppress(RuntimeError):
                threading.Thread(target=self._watch_for_cuda, name="xprof_py cuda", daemon=True).start()

    def _watch_for_cuda(self) -> None:
        while self._cuda.pending and self.state == "recording" and not self._host_stopped.wait(CUDA_POLL_S):
            with self._lock:
                self._try_cuda()

    def _try_cuda(self) -> None:
        """With the lock held."""
        if self.state == "recording" and self._host.running:
            self._told_by_cuda(self._cuda.try_start(self._xla_has_devices()))

    def _told_by_cuda(self, text: str | None) -> None:
        self._collectors["cuda"] = self._cuda.entry
        if self._cuda.running:
            self._cuda.entry.setdefault("start", clock_pair())
        if text:
            self.say(text)

    def _lend_cuda(self) -> None:
        """Before PyTorch's profiler takes the GPUs: CUPTI serves one at a time."""
        with self._lock:
            if self.state == "recording":
                for text in self._cuda.lend("torch.profiler", clock_pair):
                    self.say(text)
                self._collectors["cuda"] = self._cuda.entry

    def _take_cuda_back(self) -> None:
        with self._lock:
            if self.state == "recording":
                self._told_by_cuda(self._cuda.take_back(self._xla_has_devices(), clock_pair))

    def _xla_has_devices(self) -> bool:
        return self._xla.running and self._xla.has_devices

    def _end_cuda(self) -> None:
        self._cuda.pending = False
        if self._cuda.running:
            self._cuda.entry["stop"] = clock_pair()
            for text in self._cuda.stop():
                self.say(text)
        if self._cuda.totals:
            self.document["overhead"]["cuda"] = self._cuda.totals

    def _start_xla(self) -> None:
        fence.prepare()
        try:
            others = self._cuda.running or (self._cuda.pending and self._cuda.insists)
            self._xla.start(os.fspath(self.folder.root), devices=not others)
        except Exception as error:
            self._collectors["xla"] = {"used": False, "why": "could not start", "error": str(error)}
            self.say(f"XLA is not profiled: {error}")
            return
        self._collectors["xla"] = {
            "used": True,
            "host_tracer_level": self.settings.host_tracer_level,
            "start": clock_pair(),
        }
        if isinstance(self._xla, PjrtProfiler):
            self._collectors["xla"]["plugin"] = self._xla.plugin
        if self.when_xla_starts is not None:
            self.when_xla_starts()
        _native.set_step_marker(self._xla.step_marker())
        self._limit_xla(self.settings.xla_limit_s, self._call_for_end_of_xla)
        tid = threading.get_native_id()
        if tid in self._threads or (self._side.samples_stacks and tid == threading.main_thread().native_id):
            # The program's devices came up late: this thread's first span lies before XLA's session. The main thread is
            # sampled even if it never has one.
            self._xla.mark_thread(tid)
            self._marked_early = tid

    def _limit_xla(self, seconds: float, then: Callable[[], object]) -> None:
        """Call ``then`` after ``seconds``, 0 for never: XLA keeps every event in memory, and programs run for days."""
        if not seconds:
            return
        self._xla_limit = threading.Timer(seconds, then)
        self._xla_limit.name = "xprof_py limit"
        self._xla_limit.daemon = True
        # Without a thread there is no limit, which is no reason to fail.
        with contextlib.suppress(RuntimeError):
            self._xla_limit.start()

    def _call_for_end_of_xla(self) -> None:
        """The limit is reached: the next step to end is a good edge; a program without steps gets a plain one."""
        if self.state != "recording" or not self._xla.running:
            return
        self._xla_is_due = True
        self._limit_xla(XLA_GRACE_S, self.end_xla)
        if self.when_xla_is_due is not None:
            self.when_xla_is_due()

    def end_xla(self, drain_timeout_s: float = 0.0) -> bool:
        """Stop XLA's profiler alone if its limit is reached; annotations are recorded on. Returns whether it did.

        ``drain_timeout_s``: longest wait for device work in flight; 0 where the caller is not between two steps.
        """
        with self._lock:
            if not self._xla_is_due or self.state != "recording":
                return False
            self._xla_is_due = False
        self.document["drained"] = False
        if drain_timeout_s:
            self._drain(drain_timeout_s)
        self.say(f"XLA's profiler was stopped after {self.settings.xla_limit_s:g} s (xla_limit_s)")
        if self._behind(lambda: self._end_xla("recording")):
            self._wait_for_edge()
        return True

    def _thread_seen(self, tid: int) -> None:
        """Called by the recorder at each thread's first event, on that thread."""
        self._threads.add(tid)
        self._side.thread_seen()
        if self._xla.running and tid != self._marked_early:
            self._xla.mark_thread(tid)

    def stop(self, drain_timeout_s: float, block_error: str | None = None, note: str | None = None) -> None:
        """End the recording: wait for the work in flight, stop the collectors, leave the rest to a thread.

        Args:
            drain_timeout_s: longest wait for device work in flight.
            block_error: name of the exception that ended the block, None for a normal end.
            note: said in the run file, if there is something to stop.

        Returns when annotations and XLA take no more events; :meth:`wait` waits for the files.
        """
        with self._lock:
            if self.state != "recording":
                return
            self.state = "stopping"
            self._xla_pending = False
            if self._xla_limit is not None:
                self._xla_limit.cancel()
        began = time.perf_counter()
        try:
            if block_error is not None:
                self.document["capture"]["block_error"] = block_error
            if note:
                self.say(note, "info")
            if self._xla.running or self._cuda.running:
                self._drain(drain_timeout_s)
        finally:
            # A signal handler may raise out of the wait above; the files are written all the same.
            self._hand_over(began)

    def _drain(self, timeout_s: float) -> None:
        try:
            end = drain(timeout_s)
        except Exception as error:
            self.say(f"the work in flight could not be waited for: {error}")
            return
        if end is None:
            return
        self.document["drained"] = end.complete and end.fenced
        self.document["overhead"]["drain_s"] = round(end.waited_s, 6)
        self.document["overhead"]["drain_arrays"] = end.arrays
        self.document["overhead"]["drain_fenced"] = end.fenced
        if not end.complete:
            self.say(f"device work was still running {timeout_s:g} s after the capture's last step; its end is cut")

    def _hand_over(self, began: float) -> None:
        self.document["stop"] = clock_pair()
        threaded = self._behind(self._finish)
        try:
            self._stop_host()
            if threaded:
                self._wait_for_edge()
            with self._lock:
                self.document["overhead"]["stop_s"] = round(time.perf_counter() - began, 6)
        finally:
            self._host_stopped.set()
        if not threaded:
            self._finish()

    def _wait_for_edge(self) -> None:
        deadline = time.monotonic() + XLA_EDGE_TIMEOUT_S
        while self._xla.is_taking() and time.monotonic() < deadline:
            time.sleep(0.0002)

    def wait(self, timeout_s: float) -> bool:
        """Wait at most ``timeout_s`` for the files; returns whether they are written."""
        return self._done.wait(timeout_s)

    def never_started(self, text: str) -> None:
        """The block ended before anything was to be recorded; ``text`` says why. :meth:`wait` waits for the file."""
        with self._lock:
            if self.state != "armed":
                return
            self.state = "not_started"
        self.say(text)
        if not self._behind(self._finish_empty):
            self._finish_empty()

    def _finish_empty(self) -> None:
        try:
            self._write("not_started")
            self.folder.drop_empty_session_folder()
            self._deliver()
        finally:
            self._done.set()

    @staticmethod
    def _behind(work: Callable[[], None]) -> bool:
        """Run ``work`` on a thread of its own; False where no thread can be had, as while the interpreter ends."""
        try:
            threading.Thread(target=work, name="xprof_py finish", daemon=True).start()
        except RuntimeError:
            return False
        return True

    def give_up(self, text: str) -> None:
        """Record nothing at all, since the folder could not be taken; ``text`` says why."""
        self.state = "failed"
        self._xla_pending = False
        self.say(text)
        self._done.set()

    def abandon(self) -> None:
        """Called in a forked child: nothing of this recording is the child's to stop or to write."""
        # A thread of the parent's may have held any of these locks at the moment of the fork; it is not here to let go.
        self._lock, self._xla_end = threading.RLock(), threading.Lock()
        self._done, self._host_stopped = threading.Event(), threading.Event()
        self.state = "abandoned"
        self.when_xla_is_due = None
        self._xla_pending = self._cuda.pending = self._cuda.running = False
        self._compiles.mute()
        self._torch.mute()
        self._side.abandon()
        self._done.set()

    def _stop_host(self) -> None:
        if not self._host.running:
            return
        self._side.stop()
        self._collectors["torch"] = self._torch.stop()
        self._end_cuda()
        try:
            self._host_totals = self._host.stop(RECORDER_STOP_TIMEOUT_S)
        except Exception as error:
            self.say(f"the recorder did not stop cleanly: {error}")

    def _finish(self) -> None:
        """Everything that the program need not wait for; runs on a thread of its own."""
        began = time.perf_counter()
        state = "finished"
        try:
            self._finish_files()
        except Exception as error:
            state = "failed"
            self.say(f"{self.folder.path}: {error}")
        try:
            if not any(self._collectors[name]["used"] for name in ("host", "xla")):
                state = "failed"
            self.document["overhead"]["finish_s"] = round(time.perf_counter() - began, 6)
            self._write(state)
            self._deliver()
        finally:
            self.state = state
            self._done.set()

    def _finish_files(self) -> None:
        # XLA first: it takes events until it is stopped, and the other parts of the end take time.
        if self._collectors["xla"].get("why") == "not started":
            imported = "jax" in sys.modules
            self._collectors["xla"]["why"] = "the program's devices never came up" if imported else "no JAX"
        self._end_xla("stopping")
        self._compiles.stop()
        self._host_stopped.wait(RECORDER_STOP_TIMEOUT_S + CUDA_STOP_TIMEOUT_S + 1)
        self._stop_host()
        _native.set_step_marker(None)
        _native.set_thread_hook(None)
        self._account_host()
        if self.when_host_stopped is not None:
            self.when_host_stopped()
        self._settle()
        self._keep_programs()
        with self._lock:
            self.document["versions"] = versions()
        if "xplane" not in self.document["files"]:
            self.folder.drop_empty_session_folder()

    def _settle(self) -> None:
        """Take the rank that is known by now into the run file and the file names. Raises OSError."""
        rank = self.folder.settle(settled_rank(os.environ))
        with self._lock:
            self.document.update(identity(self.folder, rank))
            if "shard" in self.document["files"]:
                self.document["files"]["shard"] = self.folder.shard_name
            if traces := self.folder.torch_traces():
                self.document["files"]["torch"] = traces

    def _end_xla(self, state: str) -> None:
        """Stop XLA's profiler, if it runs, and write its profile; ``state``: of the run file meanwhile. Takes long."""
        with self._xla_end:
            if not self._xla.running:
                return
            with self._lock:
                self._collectors["xla"]["stop"] = clock_pair()
            try:
                result = self._xla.stop()
                self._settle()
                with self._lock:
                    self.document["files"]["xplane"] = self.folder.xplane_name
                # Named before it exists: another process of the job then knows the file for one of its siblings'.
                self._write(state)
                self._keep_xla(result)
            except Exception as error:
                with self._lock:
                    self._collectors["xla"].update(used=False, why="lost", error=str(error))
                    self.document["files"].pop("xplane", None)
                self.say(f"XLA's profile is lost: {error}")

    def _keep_xla(self, result: XlaResult) -> None:
        """Raises OSError; XlaError where JAX was to write the file and did not."""
        if result.note:
            self.say(f"XLA's profile: {result.note}")
        if result.content is None:
            if self.folder.adopt_xplane(self.document["start"]["realtime_ns"]) is None:
                raise XlaError("JAX left no file")
            name = self.folder.xplane_name
        else:
            name = self.folder.write_xplane(result.content)
        with self._lock:
            self.document["files"]["xplane"] = name
            if result.content is not None:
                self._collectors["xla"]["bytes"] = len(result.content)
            if result.note:
                self._collectors["xla"]["note"] = result.note
            if not result.reaches_end:
                self.document["drained"] = False

    def _keep_programs(self) -> None:
        """Where GPUs were recorded the compiled programs say what the kernels are of."""
        if not self._collectors.get("cuda", {}).get("used"):
            return
        found: dict[str, Any] = {"used": False, "why": "the program has none that JAX knows of"}
        try:
            self._programs.take_all()
            if len(self._programs):
                content = self._programs.xspace()
                self.document["files"]["programs"] = self.folder.write_programs(content)
                found = {"used": True, "count": len(self._programs), "bytes": len(content)}
        except Exception as error:
            found = {"used": False, "why": "lost", "error": str(error)}
            self.say(f"the compiled programs are lost: {error}")
        if self._programs.failed:
            found["failed"] = self._programs.failed
            self.say(f"JAX did not tell its compiled programs, {self._programs.failed} times asked", "info")
        if self._programs.left_out:
            found["left_out"] = self._programs.left_out
            self.say(f"{self._programs.left_out} compiled programs are left out: they are larger than all may be")
        with self._lock:
            self._collectors["programs"] = found

    def _account_host(self) -> None:
        totals = self._host_totals
        if totals is None:
            return
        if totals.get("hook_errors"):
            self.say(f"{totals['hook_errors']} of this package's hooks failed inside the program's spans", "info")
        self.document["overhead"]["recorder"] = totals
        self.document["overhead"]["spans"] = totals.get("recorded")
        if self._collectors["compiles"]["used"]:
            self._collectors["compiles"]["spans"] = self._compiles.spans
        if totals.get("rings_error") and totals.get("rings_in_memory"):
            count, why = totals["rings_in_memory"], totals["rings_error"]
            self.say(
                f"{count} threads recorded into plain memory, of which a killed process leaves nothing: {why}", "info"
            )
        if totals.get("error"):
            self._collectors["host"]["error"] = totals["error"]
            self.say(f"the shard is incomplete: {totals['error']}")
        elif totals.get("dropped"):
            self.say(f"{totals['dropped']} annotations were dropped: the budget or a thread's ring was full")

    def _write(self, state: str) -> None:
        with self._lock:
            self.document["state"] = state
            document = copy.deepcopy(self.document)
        try:
            self.folder.write_run_file(document)
        except OSError as error:
            warn(f"{self.folder.path}: the run file could not be written: {error}")

    def _deliver(self) -> None:
        try:
            self.folder.deliver()
        except Exception as error:
            warn(f"{self.folder.path}: could not be copied there: {error}. The capture stays in {self.folder.root}")
