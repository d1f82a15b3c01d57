"""What TVM's CUDA code generator refuses or writes down wrongly, and what we hand to it instead."""

import functools
import math
import operator
import re
import struct

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from graphgrad.lower.cuda.compiler import executable_sources, machine_code
from graphgrad.lower.cuda.intrinsics import _MATHEMATICS
from graphgrad.lower.pipeline import lower
from tests.lower.cuda.sources import TARGET, cuda_source, needs_nvcc, program, whole_source

FUNCTIONS = sorted(_MATHEMATICS)
TWO_OPERANDS = ("tirx.atan2", "tirx.fmod", "tirx.hypot", "tirx.pow")


def elementwise(element, dtypes, operands=2):
    return program(lambda *tensors: each(element, *tensors), [(8,)] * operands, dtypes)


def each(element, *tensors):
    return te.compute((8,), lambda i: element(*(tensor(i) for tensor in tensors)), name="y")


def functions(dtype):
    """The names of the functions that TVM has in a dtype: it has no power of bfloat16."""
    return [name for name in FUNCTIONS if (name, dtype) != ("tirx.pow", "bfloat16")]


def function(name, x, y):
    operands = [x, y] if name in TWO_OPERANDS else [x]
    return tirx.call_intrin(x.ty, name, *operands)


def stock_source(mod):
    """Return the source of a module that we scheduled, as TVM's own passes write it."""
    nothing = tvm.transform.Sequential([])
    executable = tvm.compile(
        lower(mod, TARGET), TARGET, relax_pipeline=nothing, tir_pipeline="s_tir"
    )
    (source,) = executable_sources(executable)
    return source


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_functions_of_half_precision_are_those_of_float32(dtype):
    def expression(x, y):
        return [each(lambda a, b, n=name: function(n, a, b), x, y) for name in functions(dtype)]

    source = cuda_source(program(expression, [(8,)] * 2, [dtype] * 2))
    for name in functions(dtype):
        plain = {"round": "nearbyint", "sigmoid": "exp"}.get(name[5:], name[5:])  # of tirx., prim.
        assert re.search(rf"\b{plain}f\(\(", source), f"{name} is missing"
        assert not re.search(rf"\bh{plain}\(", source), f"{name} is computed in half precision"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_remainder_of_half_precision(dtype):
    assert "fmodf(" in cuda_source(elementwise(tirx.truncmod, [dtype] * 2))


def test_bfloat16_is_rounded_only_where_it_is_stored():
    source = cuda_source(elementwise(lambda x, y: (x + y) * x - y / x, ["bfloat16"] * 2))
    assert source.count("(nv_bfloat16)") == 1, source


@pytest.mark.parametrize(
    "element",
    [
        lambda x, y: tirx.Select(x + y < y, x, y),
        lambda x, y: tirx.if_then_else(x + y == y, x, y),
        lambda x, y: tirx.max(x + y, y),
    ],
    ids=["select", "conditional", "maximum"],
)
def test_bfloat16_is_rounded_where_it_is_compared(element):
    source = cuda_source(elementwise(element, ["bfloat16"] * 2))
    assert source.count("(nv_bfloat16)") > 1, source


@pytest.mark.parametrize("value", [1e-20, 1 / 3, -1 / 50176, 5e-324, math.pi * 1e-9])
def test_float64_constants_keep_their_digits(value):
    source = cuda_source(elementwise(lambda x: x * tirx.const(value, "float64"), ["float64"], 1))
    (bits,) = map(int, re.findall(r"__longlong_as_double\(\(int64_t\)(-?\d+)\)", source))
    assert struct.unpack("d", struct.pack("q", bits)) == (value,)


@pytest.mark.parametrize("value", [0.5, 3.0, 1e300, -0.1])
def test_float64_constants_stay_readable_where_that_is_exact(value):
    source = cuda_source(elementwise(lambda x: x * tirx.const(value, "float64"), ["float64"], 1))
    numbers = map(float, re.findall(r"(?<=\* )-?\d+\.\d+", source))
    assert value in numbers


def test_stock_code_loses_the_digits_of_float64_constants():
    mod = elementwise(lambda x: x * tirx.const(1e-20, "float64"), ["float64"], 1)
    assert "* 0.000000000000000" in stock_source(mod), (
        "TVM is mended: write_exact_expressions can go"
    )


def test_stock_code_drops_nan_from_extrema():
    mod = elementwise(tirx.max, ["float32"] * 2)
    assert "max(" in stock_source(mod), "TVM is mended: _extremum can go"


@pytest.mark.parametrize(("extremum", "sign"), [(tirx.max, ">"), (tirx.min, "<")])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_extrema_of_floats_are_selections(extremum, sign, dtype):
    source = cuda_source(elementwise(extremum, [dtype] * 2))
    assert re.search(rf"\(a {sign} b\) \? a : b", source), source
    assert not re.search(r"\b(max|min)\(", source)


def test_extrema_of_integers_are_those_of_cuda():
    assert "max(" in cuda_source(elementwise(tirx.max, ["int32"] * 2))


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan], ids=str)
def test_bfloat16_knows_infinity_and_nan(value):
    mod = program(
        lambda x: te.compute(x.shape, lambda i: tirx.const(value, "bfloat16"), name="y"),
        [(8,)],
        ["bfloat16"],
    )
    assert re.search(r"\(nv_bfloat16\)-?CUDART_(INF|NAN)_F", cuda_source(mod))


def test_casts_to_narrow_integers_of_more_than_they_hold():
    """In two places, so that TVM binds a variable to them, whose bounds it asks for."""
    mod = program(
        lambda x, y: te.compute(
            x.shape,
            lambda i: sum(
                tirx.Select(z[i] == (i - 444).astype("int8"), z[i], tirx.const(0, "int8"))
                for z in (x, y)
            ),
        ),
        [(1000,)] * 2,
        ["int8"] * 2,
    )
    assert "196) & 255) - 128" in cuda_source(mod)  # 196 is -444 + 128 + 512


def everything(x, y):
    """Every function, conversion and constant that may need care, of two elements of a dtype."""
    dtype = str(x.ty)
    values = [function(name, x, y) for name in functions(dtype)]
    values += [tirx.max(x, y), tirx.min(x, y), tirx.truncmod(x, y), tirx.abs(y)]
    values += [tirx.floor(x), tirx.ceil(y), tirx.trunc(x), tirx.Select(x < y, x, y)]
    values += [tirx.const(value, dtype) for value in (-math.inf, math.nan, 1e-7)]
    values += [
        test(x.astype("float32")).astype(dtype) for test in (tirx.isnan, tirx.isinf, tirx.isfinite)
    ]
    others = ("int8", "uint8", "bool", "int32", "int64", "float16", "bfloat16", "float64")
    return functools.reduce(operator.add, values + [x.astype(o).astype(dtype) for o in others])


@needs_nvcc
def test_nvcc_takes_every_function_in_every_dtype():
    dtypes = ("float64", "float32", "float16", "bfloat16")

    def expression(*tensors):
        return [each(everything, *tensors[i : i + 2]) for i in range(0, len(tensors), 2)]

    mod = program(expression, [(8,)] * 8, np.repeat(dtypes, 2).tolist())
    assert machine_code(whole_source(mod), "sm_90")
