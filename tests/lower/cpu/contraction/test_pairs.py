"""Contractions of bfloat16 by pairs of terms, beside the same as TVM builds them."""

import dataclasses
import random
import re

import ml_dtypes
import numpy as np
import pytest
from tvm import te, tirx, topi

import graphgrad as gg
from graphgrad.lower.cpu import pair_products
from graphgrad.lower.cpu import schedule as cpu
from graphgrad.lower.cpu.contraction import pairs, replace
from graphgrad.lower.cpu.tuning import AVX512
from graphgrad.runtime.machine import processor_flags
from tests.lower import kernel_programs
from tests.lower.cpu import test_time_loops as time_loops
from tests.lower.cpu.contraction.test_random import (
    FORMS,
    contraction,
    random_costs,
    results_of,
    with_map,
)
from tests.lower.cpu.test_time_loops import STEPS
from tests.lower.kernel_programs import run, tensor

PAIRS = dataclasses.replace(AVX512, multiplies_pairs=True)
NAME = "graphgrad_add_pair_product"


def _emulated(lanes):
    """What a processor without the instruction computes in its place, in LLVM's language."""

    def splat(value):
        return "<" + ", ".join([f"i32 {value}"] * lanes) + ">"

    lines = []
    for of in "ab":
        for part, op, value in (("low", "shl", 16), ("high", "and", -65536)):
            lines.append(f"%{of}{part} = {op} <{lanes} x i32> %{of}, {splat(value)}")
            lines.append(f"%{of}{part}f = bitcast <{lanes} x i32> %{of}{part} to <{lanes} x float>")
    for part in ("low", "high"):
        lines.append(f"%{part} = fmul <{lanes} x float> %a{part}f, %b{part}f")
    lines.append(f"%both = fadd <{lanes} x float> %low, %high")
    lines.append(f"%r = fadd <{lanes} x float> %sum, %both")
    floats, ints = f"<{lanes} x float>", f"<{lanes} x i32>"
    return (
        f"define linkonce_odr {floats} @{NAME}_{lanes}({floats} %sum, {ints} %a, {ints} %b) "
        "alwaysinline nounwind {\n" + "\n".join(lines) + f"\nret {floats} %r\n}}\n"
    )


@pytest.fixture(autouse=True)
def instruction(monkeypatch):
    """Let processors without the instruction add products of pairs, too."""
    if "avx512_bf16" not in (processor_flags() or ()):
        definitions = "".join(map(_emulated, (4, 8, 16))) + pair_products._SCALAR.format(name=NAME)
        monkeypatch.setattr(pair_products, "_DEFINITIONS", definitions)


def agrees(inputs, output, processor=PAIRS, winograd=False, seed=0):
    """Assert that a kernel computes the same by pairs; return the scheduled function."""
    func = te.create_prim_func([*inputs, output])
    scheduled = cpu.schedule_loops(func, processor, winograd=winograd)
    expected, actual = results_of(func, scheduled, inputs, output, seed)
    unit = 2**-7 if str(output.dtype) == "bfloat16" else 1e-5
    np.testing.assert_allclose(actual, expected, rtol=0, atol=unit * np.abs(expected).max())
    return scheduled


def is_paired(func):
    return NAME in func.script()


@pytest.mark.parametrize("seed", range(24))
def test_random_contractions(seed, monkeypatch):
    rng = random.Random(seed)
    monkeypatch.setattr(replace, "SMALL", 100)
    costs = random_costs(rng)
    monkeypatch.setattr(pairs, "_MAX_RELATIVE_COST", 100)
    inputs, output = contraction(rng, list(FORMS)[seed % 4], "bfloat16")
    if rng.random() < 0.5:
        inputs, output = with_map(rng, inputs, output)
    agrees(inputs, output, dataclasses.replace(PAIRS, contraction=costs), seed=seed)


def product(rows, terms, columns, flip_a=False, flip_b=False):
    a = tensor(*((terms, rows) if flip_a else (rows, terms)), dtype="bfloat16", name="a")
    b = tensor(*((columns, terms) if flip_b else (terms, columns)), dtype="bfloat16", name="b")
    k = te.reduce_axis((0, tirx.IntImm("int64", terms)), "k")

    def element(i, j):
        left, right = a[k, i] if flip_a else a[i, k], b[j, k] if flip_b else b[k, j]
        return te.sum(left.astype("float32") * right.astype("float32"), axis=k)

    return [a, b], te.compute((rows, columns), element, name="c")


@pytest.mark.parametrize(
    "flips, copies",
    [
        ((False, False), {"b_pairs"}),  # rows of a are read as they lie
        ((False, True), {"b_pairs"}),  # whole pairs are copied, and transposed into panels
        ((True, False), {"a_pairs", "b_pairs"}),
        ((True, True), {"a_pairs", "b_pairs"}),
    ],
)
def test_what_is_copied(flips, copies):
    func = agrees(*product(96, 64, 96, *flips))
    text = func.script()
    assert is_paired(func)
    assert {name for name in ("a_pairs", "b_pairs") if name in text} <= copies
    assert "a_pairs" in text or not flips[0]


@pytest.mark.parametrize("terms", [33, 65])
@pytest.mark.parametrize("flips", [(False, False), (True, True), (False, True)])
def test_a_single_term_at_the_end(terms, flips):
    """The number beside it is a zero of the copy, not what lies behind the tensor."""
    assert is_paired(agrees(*product(96, terms, 96, *flips)))


def padded(x):
    return topi.nn.pad(x, [0, 2, 2, 0], [0, 2, 2, 0], pad_value=0.0, name="padded")


@pytest.mark.parametrize("channels", [32, 33, 3])
@pytest.mark.parametrize("step", [1, 2])
def test_padded_convolutions(channels, step):
    x = tensor(2, 14, 14, channels, dtype="bfloat16", name="x")
    w = tensor(5, 5, channels, 32, dtype="bfloat16", name="w")
    inside = padded(x)
    r, s, c = (te.reduce_axis((0, n), v) for n, v in ((5, "r"), (5, "s"), (channels, "c")))
    size = 14 // step
    y = te.compute(
        (2, size, size, 32),
        lambda n, h, v, k: te.sum(
            inside[n, h * step + r, v * step + s, c].astype("float32")
            * w[r, s, c, k].astype("float32"),
            axis=[r, s, c],
        ),
        name="y",
    )
    func = agrees([x, w], y)
    assert is_paired(func)
    # The pairs of the padded tensor are made of the tensor, in one pass.
    assert "padded = " not in func.script()


@pytest.mark.parametrize("images", [4, 5])
def test_padded_weight_gradients(images):
    """Windows overlap along rows and columns, so pairs are those of images."""
    x = tensor(images, 12, 12, 16, dtype="bfloat16", name="x")
    g = tensor(images, 12, 12, 32, dtype="bfloat16", name="g")
    inside = padded(x)
    n, p, q = (te.reduce_axis((0, e), v) for e, v in ((images, "n"), (12, "p"), (12, "q")))
    dw = te.compute(
        (5, 5, 16, 32),
        lambda r, s, c, k: te.sum(
            inside[n, p + r, q + s, c].astype("float32") * g[n, p, q, k].astype("float32"),
            axis=[n, p, q],
        ),
        name="dw",
    )
    assert is_paired(agrees([x, g], dw))


def test_what_a_kernel_allocates_is_no_bfloat16():
    """TVM makes it float32: there are no pairs in memory."""
    x, w = tensor(64, 64, dtype="bfloat16", name="x"), tensor(64, 64, dtype="bfloat16", name="w")
    k = te.reduce_axis((0, tirx.IntImm("int64", 64)), "k")
    total = te.compute((64, 64), lambda i, j: te.sum(x[i, k], axis=k), name="rows")
    y = te.compute(
        (64, 64),
        lambda i, j: te.sum(total[i, k].astype("float32") * w[k, j].astype("float32"), axis=k),
        name="y",
    )
    assert not is_paired(agrees([x, w], y))


def rounded_recurrence(batch, hidden, transposed=False):
    """Return the inputs and the states of a loop with products of rounded states."""
    x = time_loops.tensor(STEPS + 1, batch, hidden, name="x")
    w = time_loops.tensor(hidden, hidden, dtype="bfloat16", name="w")
    k = te.reduce_axis((0, hidden), name="k")

    def update(state):
        rounded = te.compute(
            state.shape, lambda t, i, j: state[t - 1, i, j].astype("bfloat16"), name="rounded"
        )

        def element(t, i, j):
            weight = w[j, k] if transposed else w[k, j]
            return te.sum(rounded[t, i, k].astype("float32") * weight.astype("float32"), axis=k)

        of_state = te.compute(state.shape, element, name="product")
        return te.compute(state.shape, lambda *at: x(*at) + of_state(*at))

    first, states = time_loops.scan(update, batch, hidden)
    return [x, w, first], states


def run_recurrence(batch, hidden, transposed=False, first=None):
    """Run such a loop on small integers, whose sums are exact in any order."""
    inputs, states = rounded_recurrence(batch, hidden, transposed)
    random = np.random.default_rng(hidden)
    values = [
        random.integers(-2, 3, [int(n) for n in tensor.shape]).astype(str(tensor.dtype))
        for tensor in inputs
    ]
    if first is not None:
        values[1][:] = 1
        values[2][:] = first
    return run(inputs, [states], values=values, make=gg.fallback.create_prim_func)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("batch, hidden", [(1, 128), (1, 129), (3, 129), (16, 128)])
def test_states_that_a_loop_rounds(batch, hidden, transposed, monkeypatch):
    """The weight is copied in pairs once, the state in each step."""
    monkeypatch.setattr(kernel_programs, "UNIT", dataclasses.replace(PAIRS, step_bytes=0))
    runs = run_recurrence(batch, hidden, transposed)
    np.testing.assert_array_equal(runs.scheduled[0], runs.stock[0])
    last = runs.stock[0][-1]
    assert np.abs(last).max() < 1 << 24 and (last != last.astype(ml_dtypes.bfloat16)).any()
    step = time_loops.step_of(runs)
    assert NAME in step and ("w_pairs = " in runs.text or "panels = " in runs.text)
    copies = [line for line in step.splitlines() if re.search(r"(pairs|panels)\[.*\] = ", line)]
    assert copies and all("rounded_pairs[" in line for line in copies)


def test_a_nan_that_a_loop_rounds(monkeypatch):
    """The high bits of this one are those of infinity."""
    monkeypatch.setattr(kernel_programs, "UNIT", dataclasses.replace(PAIRS, step_bytes=0))
    first = np.array(0x7F800001, "uint32").view("float32")
    runs = run_recurrence(1, 128, first=first)
    assert NAME in runs.text
    assert np.isnan(runs.scheduled[0][1:]).all()


def test_processors_without_the_instruction():
    inputs, output = product(96, 64, 96)
    func = te.create_prim_func([*inputs, output])
    assert not is_paired(cpu.schedule_loops(func, AVX512))
