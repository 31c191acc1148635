"""read_signature: which arguments a program takes, under the names that the user gave them."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hlo_bytes import BF16, BOOL, F32, I32, Parameter, message, number, program, shape, tuple_of
from xprof_py.postprocess.hlo.signature import Argument, read_signature

WITHOUT_JAX = "jax is not installed: the extra `test` brings it"


def arguments(hlo: bytes) -> list[tuple[str, str]]:
    return [(argument.name, argument.type) for argument in read_signature(hlo).arguments]


def test_parameters_come_in_the_order_of_their_numbers_with_the_types_of_jaxprs() -> None:
    hlo = program(
        Parameter("p['w']", shape(BF16, 128, 300)),
        Parameter("mask", shape(BOOL, 4)),
        Parameter("n", shape(I32)),
        result=tuple_of(shape(F32, 2, 3), shape(F32)),
    )
    assert arguments(hlo) == [("p['w']", "bf16[128,300]"), ("mask", "bool[4]"), ("n", "i32[]")]
    assert read_signature(hlo).result == "(f32[2,3], f32[])"


def test_dimensions_may_be_written_one_field_each() -> None:
    assert arguments(program(Parameter("x", shape(F32, 300, 2, packed=False)))) == [("x", "f32[300,2]")]


def test_a_layout_is_told_where_it_is_not_row_major() -> None:
    assert arguments(program(Parameter("x", shape(F32, 4, 8, order=(0, 1))))) == [("x", "f32[4,8]{0,1}")]


def test_a_sharded_argument_says_how_it_is_cut() -> None:
    by_rows = number(1, 3) + message(3, bytes([4, 1]))
    rows_and_copies = number(1, 3) + message(3, bytes([2, 1, 2])) + number(6, 1)
    copies = number(1, 0)
    hlo = program(
        Parameter("x", shape(F32, 8), by_rows),
        Parameter("y", shape(F32, 8), rows_and_copies),
        Parameter("z", shape(F32, 8), copies),
    )
    assert arguments(hlo) == [("x", "f32[8] sharded(4,1)"), ("y", "f32[8] sharded(2,1)"), ("z", "f32[8]")]


def test_a_tuple_of_all_arguments_is_taken_apart() -> None:
    assert arguments(program(Parameter("args", tuple_of(shape(F32, 2), shape(I32))))) == [
        ("args[0]", "f32[2]"),
        ("args[1]", "i32[]"),
    ]


def test_names_that_are_missing_or_come_twice_are_made_distinct() -> None:
    hlo = program(Parameter("", shape(F32)), Parameter("x", shape(F32)), Parameter("x", shape(I32)))
    assert arguments(hlo) == [("parameter 0", "f32[]"), ("x", "f32[]"), ("x (2)", "i32[]")]


def test_the_digest_says_whether_two_programs_are_one() -> None:
    x = Parameter("x", shape(F32, 8))
    first = read_signature(program(x, program_id=10))
    assert read_signature(program(x, program_id=12)).digest == first.digest
    assert read_signature(program(x, program_id=10, body="multiply")).digest != first.digest


def test_an_unknown_dtype_is_a_number_not_a_guess() -> None:
    assert arguments(program(Parameter("x", shape(120, 8)))) == [("x", "type120[8]")]


def test_dtypes_are_those_of_xla() -> None:
    """By number and name of the installed jaxlib; jaxprs write i, u and c for XLA's S, U and C."""
    types = pytest.importorskip("jax._src.lib", reason=WITHOUT_JAX).xla_client.PrimitiveType
    checked = 0
    for name in (name for name in dir(types) if re.fullmatch(r"PRED|(S|U|F|BF|C)[0-9].*", name)):
        ((_, written),) = arguments(program(Parameter("x", shape(getattr(types, name).value))))
        expected = "bool" if name == "PRED" else name.lower().replace("s", "i", 1) if name[0] == "S" else name.lower()
        assert written.removesuffix("[]").replace("_", "") == expected
        checked += 1
    assert checked >= 20


def test_a_program_that_jax_compiled() -> None:
    jax: Any = pytest.importorskip("jax", reason=WITHOUT_JAX)
    jnp: Any = pytest.importorskip("jax.numpy", reason=WITHOUT_JAX)

    def layer(p: Any, x: Any, unused: Any, *, scale: Any) -> Any:
        return jnp.tanh(x @ p[0]["w"]) * scale + p[1]

    p = [{"w": jnp.ones((8, 4), jnp.bfloat16)}, jnp.ones((3, 4))]
    compiled = jax.jit(layer).lower(p, jnp.ones((3, 8), jnp.int8), jnp.ones(5), scale=2.0).compile()
    (module,) = compiled.runtime_executable().hlo_modules()
    signature = read_signature(message(1, module.as_serialized_hlo_module_proto()))
    assert signature.arguments == (
        Argument("p[0]['w']", "bf16[8,4]"),
        Argument("p[1]", "f32[3,4]"),
        Argument("x", "i8[3,8]"),
        Argument("scale", "f32[]"),
    )
    assert signature.result == "f32[3,4]"


def test_arrow_buffers_are_read_as_they_are() -> None:
    hlo = program(Parameter("x", shape(F32, 200)))
    assert read_signature(pa.array([hlo], pa.large_binary())[0].as_buffer()) == read_signature(hlo)


@pytest.mark.parametrize("hlo", [b"", message(2, b"x"), message(1, message(1, "jit_f") + number(6, 3))])
def test_what_holds_no_entry_is_refused(hlo: bytes) -> None:
    with pytest.raises(ValueError, match="holds no"):
        read_signature(hlo)


WHOLE = program(Parameter("x", shape(F32, 300, 4)), Parameter("y", tuple_of(shape(F32), shape(I32))))


@given(st.integers(0, len(WHOLE) - 1), st.binary(max_size=4))
def test_damage_is_an_error_or_another_program_never_a_crash(place: int, junk: bytes) -> None:
    for damaged in (WHOLE[:place], WHOLE[:place] + junk + WHOLE[place + len(junk) :]):
        with contextlib.suppress(ValueError):
            assert read_signature(damaged).result
