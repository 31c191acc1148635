"""Hosts made of network namespaces on one bridge, whose links can be made slow. Linux, root, `ip` and `tc` only.

gloo listens on the address that the name of its host resolves to. So every namespace has its own /etc/hosts (`ip netns
exec` mounts /etc/netns/<namespace>/hosts there), and every process in it its own host name, by a UTS namespace.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ETC_NETNS = Path("/etc/netns")


def why_unavailable() -> str | None:
    """Why no hosts can be made on this machine, None where they can: by making an empty one."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "tc", "unshare", "hostname") if shutil.which(tool) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    name = f"xp{os.getpid()}t"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        return f"no network namespaces here: {made.stderr.strip()}"
    limited = subprocess.run(_tbf(name, "lo", 100), capture_output=True, text=True, check=False)
    subprocess.run(["ip", "netns", "del", name], check=True)
    return f"no rate limit (tbf) here: {limited.stderr.strip()}" if limited.returncode != 0 else None


def _tbf(namespace: str, device: str, mbit: float) -> list[str]:
    """The token bucket's burst must hold what the link may send between two ticks of the kernel's clock."""
    burst_kib = max(64, int(mbit * 1000 / 8 / 250))
    rate = ["rate", f"{mbit}mbit", "burst", f"{burst_kib}kb", "latency", "2s"]
    return ["tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "tbf", *rate]


@dataclass(frozen=True)
class Host:
    """``prefix``: put before a command, it runs on this host."""

    namespace: str
    address: str
    prefix: tuple[str, ...]

    def limit(self, mbit: float) -> None:
        """What this host sends goes out at no more than ``mbit`` Mbit/s."""
        subprocess.run(_tbf(self.namespace, "eth0", mbit), check=True)


@contextmanager
def hosts(count: int) -> Iterator[list[Host]]:
    """``count`` hosts that reach each other at full speed, gone afterwards. Raises CalledProcessError."""
    mark = f"xp{os.getpid()}"
    bridge = f"{mark}b"
    subnet = f"10.77.{os.getpid() % 250 + 1}"
    names = [f"{mark}n{i}" for i in range(count)]
    addresses = [f"{subnet}.{i + 1}" for i in range(count)]
    known = "".join(f"{address} {name}\n" for address, name in zip(addresses, names, strict=True))
    try:
        _ip("link", "add", bridge, "type", "bridge")
        _ip("link", "set", bridge, "up")
        for i, (name, address) in enumerate(zip(names, addresses, strict=True)):
            outer = f"{mark}v{i}"
            _ip("netns", "add", name)
            _ip("link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("link", "set", outer, "master", bridge, "up")
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", name, "link", "set", "lo", "up")
            (ETC_NETNS / name).mkdir(parents=True)
            (ETC_NETNS / name / "hosts").write_text(f"127.0.0.1 localhost\n{known}")
        yield [
            Host(name, address, ("ip", "netns", "exec", name, "unshare", "--uts", *_called(name)))
            for name, address in zip(names, addresses, strict=True)
        ]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
            shutil.rmtree(ETC_NETNS / name, ignore_errors=True)
        subprocess.run(["ip", "link", "del", bridge], capture_output=True, check=False)


def _called(name: str) -> tuple[str, ...]:
    """A command prefix that sets the host name and then becomes what follows."""
    return ("sh", "-c", f'hostname {name}; exec "$@"', "sh")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
