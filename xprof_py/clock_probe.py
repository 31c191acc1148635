"""Whom this process asks for the time: the plan of the clock prober, made without asking JAX for anything new.

Process 0 of the job answers, the others ask it. With ``XPROF_PY_PROBE_PEERS``, a list that is the same on all hosts,
each process also answers at the address of the list that is its own host's and asks all others.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xprof_py.rank import Rank

DEFAULT_PORT = 9473
"""UDP port of an address that names none."""
MOST_PEERS = 63
"""Addresses in a list; native/probe takes 64, one of them process 0's."""

# Where the launcher that gave the rank says how many processes run on this host, and which of them this one is.
_LOCAL = {
    "RANK": ("LOCAL_WORLD_SIZE", "LOCAL_RANK"),
    "OMPI_COMM_WORLD_RANK": ("OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "PMI_RANK": ("MPI_LOCALNRANKS", "MPI_LOCALRANKID"),
    "SLURM_PROCID": ("", "SLURM_LOCALID"),
}


@dataclass(frozen=True)
class Address:
    """Where a prober answers. ``text``: as it was configured."""

    text: str
    host: str
    port: int


@dataclass(frozen=True)
class ProbePlan:
    """What ``_native.probe_start`` needs. ``token``: "given", or "derived" from what the job is called."""

    key: bytes
    serve_port: int
    addresses: tuple[tuple[str, str, int, bool], ...]
    token: str


def parse_address(text: str) -> Address:
    """``host``, ``host:port``, ``[IPv6]`` or ``[IPv6]:port``; a bare IPv6 address too. Raises ValueError."""
    text = text.strip()
    match = re.fullmatch(r"\[([0-9A-Fa-f:.%\w]+)\](?::(\d+))?|([^\[\]:\s/]+)(?::(\d+))?", text, re.ASCII)
    if match is not None:
        host, port = match[1] or match[3], match[2] or match[4]
    else:
        import ipaddress

        host, port = text, None
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            raise ValueError("wants host:port, with an IPv6 address in []") from None
    number = int(port) if port else DEFAULT_PORT
    if not 0 < number < 65536 or len(text) > 255:
        raise ValueError("wants a port from 1 to 65535 and at most 255 letters")
    return Address(text, host, number)


def coordinator(environ: Mapping[str, str]) -> str | None:
    """The job's coordinator, a host or host:port: as jax.distributed has it, else the environment."""
    state = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    if state is not None and getattr(state, "client", None) is not None:
        address = getattr(state, "coordinator_address", None)
        if isinstance(address, str) and address:
            return address
    return environ.get("JAX_COORDINATOR_ADDRESS") or environ.get("MASTER_ADDR") or None


def plan(
    *,
    insist: bool,
    address: Address | None,
    peers: Sequence[Address],
    token: str,
    rank: Rank,
    environ: Mapping[str, str],
) -> ProbePlan | str:
    """The plan, or why clocks are not probed.

    Args:
        insist: probe also where the job may be one host's, or another process of this host does it already.
        address: where process 0 answers; None: at DEFAULT_PORT of the coordinator's host, if it is known.
        peers: the mesh, each host's address once.
        token: what all processes of the job hold; "": it is derived from the address and the job's name.
    """
    if rank.index is None:
        return "nothing says which process of the job this is"
    if not insist:
        alone = _alone(rank, environ)
        if alone:
            return alone
    server = address
    if server is None and not peers:
        known = coordinator(environ)
        if known is None:
            return "no address is known: set XPROF_PY_PROBE_ADDRESS=host:port, where process 0 answers"
        try:
            server = parse_address(_host_of(known))
        except ValueError:
            return f"the coordinator's address is not understood: {known}"
        if not insist and _is_loopback(server.host):
            return f"the job's processes run on one host: its coordinator is {known}"
    import hashlib

    named = "|".join([*(a.text for a in ([server] if server else [])), *(a.text for a in peers), rank.job or ""])
    key = hashlib.sha256(f"xprof_py probe|{token}".encode() if token else f"xprof_py probe of|{named}".encode())
    serve_port = server.port if server is not None and rank.index == 0 else 0
    asked = [] if server is None or serve_port else [(server, False)]
    asked += [(a, True) for a in peers if server is None or (a.host, a.port) != (server.host, server.port)]
    return ProbePlan(
        key.digest()[:16],
        serve_port,
        tuple((a.text, a.host, a.port, mesh) for a, mesh in asked),
        "given" if token else "derived",
    )


def _alone(rank: Rank, environ: Mapping[str, str]) -> str:
    """Why this process need not ask anybody, "" where it should."""
    if rank.count is None or rank.count < 2:
        return "the job has one process" if rank.count == 1 else "nothing says that the job has several processes"
    count_name, index_name = _LOCAL.get(rank.source, ("", ""))
    if environ.get(count_name) == str(rank.count):
        return "the job's processes run on one host"
    if rank.source == "SLURM_PROCID" and environ.get("SLURM_STEP_NUM_NODES") == "1":
        return "the job's processes run on one host"
    if environ.get(index_name, "0") != "0":
        return f"another process of this host does it ({index_name} is not 0)"
    return ""


def _host_of(known: str) -> str:
    """A coordinator's address without its port, which is somebody else's."""
    try:
        host = parse_address(known).host
    except ValueError:
        return known
    return f"[{host}]" if ":" in host else host


def _is_loopback(host: str) -> bool:
    import ipaddress

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
