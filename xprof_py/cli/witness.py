"""Whether a signal was sent to this process alone, or to all of its job: then the program that it started has it too.

Whom a signal was sent to cannot be asked. `timeout` sends its own to the process that it started and then to the
group, a scheduler to the group or to one process after the other, `kill` to one: each looks alike to the one that
receives it. (`env` and `nohup` become the program; a shell passes nothing on; `sudo` goes by the sender's group, and so
keeps those of `timeout --foreground` and of scripts to itself.) So a second process stands beside the program, blocks
all signals and does nothing: a signal that waits for it was sent to all.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

TOGETHER_S = 0.1
"""What is sent to all reaches them within this time of each other, also where the machine is busy."""


class Witness:
    """Stands in the process group of its maker, which must be of one thread, until that is gone."""

    def __init__(self) -> None:
        self._pid = self._held = -1
        self._stand()

    def _stand(self) -> None:
        read, self._held = os.pipe()
        try:
            self._pid = os.fork()
        except OSError:  # no process to be had: every signal is taken for one that was sent to us alone
            self.dismiss()
        if self._pid == 0:
            try:
                signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
                os.close(self._held)
                os.read(read, 1)  # until the other end is closed, by whatever ended its process
            finally:
                os._exit(0)
        os.close(read)

    def has_seen(self, number: int) -> bool:
        """Whether a signal that this process has just received was sent to all; waits TOGETHER_S for it to show."""
        until = time.monotonic() + TOGETHER_S
        while not self._waiting() >> (number - 1) & 1:
            if time.monotonic() >= until:
                return False
            time.sleep(TOGETHER_S / 20)
        # `timeout` sends it twice to this process: that is one signal. The next one wants a witness that has seen none.
        signal.sigtimedwait({number}, TOGETHER_S)
        self.dismiss()
        self._stand()
        return True

    def _waiting(self) -> int:
        """The signals that wait for it, a bit each."""
        try:
            said = Path(f"/proc/{self._pid}/status").read_text(encoding="ascii", errors="replace")
        except OSError:
            return 0
        return int(said.partition("\nShdPnd:")[2].partition("\n")[0] or "0", 16)

    def dismiss(self) -> None:
        """Send it away."""
        if self._held >= 0:
            os.close(self._held)
        if self._pid > 0:
            os.waitpid(self._pid, 0)
        self._pid = self._held = -1
