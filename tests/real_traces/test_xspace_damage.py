"""Real files, damaged: they are read or refused with a place, never worse."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from xprof_py.errors import BadInputError
from xprof_py.postprocess.hlo.module import read_programs
from xprof_py.postprocess.readers.xspace import read_xspace

TraceFiles = Callable[[str], list[Path]]

pytestmark = pytest.mark.real_traces


def test_every_truncation_names_the_place(trace_files: TraceFiles, tmp_path: Path) -> None:
    whole = trace_files("jax_cpu/planted_memory")[0].read_bytes()
    file = tmp_path / "cut.xplane.pb"
    places = []
    for length in range(12, len(whole), 211):
        file.write_bytes(whole[:length])
        with pytest.raises(BadInputError) as caught:
            read_xspace(file)
        places.append(caught.value.place)
    assert all("byte" in place for place in places)


def test_flipped_bytes_are_read_or_refused(trace_files: TraceFiles, tmp_path: Path) -> None:
    whole = trace_files("jax_cpu/planted_checkpoint")[0].read_bytes()
    file = tmp_path / "flipped.xplane.pb"
    chance = random.Random(1)
    refused = 0
    for _ in range(150):
        damaged = bytearray(whole)
        for _ in range(chance.randint(1, 5)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        file.write_bytes(damaged)
        try:
            profile = read_xspace(file)
        except BadInputError:
            refused += 1
            continue
        for table in (*profile.tables.values(), *read_programs(profile["programs"]).values()):
            table.validate(full=True)
    assert 0 < refused < 150


def test_the_published_corrupt_file(trace_files: TraceFiles) -> None:
    """A real XSpace that a UTF-8 re-encoding destroyed."""
    files = trace_files("xspace/tpu_inference_2_corrupt_utf8")
    with pytest.raises(BadInputError, match=r"planes\[0\], byte 1: a length beyond the end of its message"):
        read_xspace(files[0])
