"""Contractions of random shapes, with limits so low that every way of cutting loops occurs."""

import dataclasses
import random

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import te

from graphgrad.fallback import create_prim_func
from graphgrad.lower.cpu import schedule as cpu
from graphgrad.lower.cpu.contraction import replace
from graphgrad.lower.cpu.tuning import NEON, ContractionCosts, Processor
from tests.guarded_memory import guarded_tensor
from tests.lower.kernel_programs import HOST
from tests.running import compile_library

TOLERANCE = {"float32": 2e-5, "float64": 1e-12, "float16": 6e-3, "bfloat16": 2e-2, "int32": 0}
UNITS = [Processor(64, 32), Processor(32, 16), Processor(16, 16), NEON]


def wide(value, dtype):
    """Return a factor as the kernels of narrow floats read it."""
    return value.astype("float32") if dtype in ("float16", "bfloat16") else value


def placeholder(rng, names, axes, dtype):
    """Return a tensor whose dimensions are the axes of the names, in random order, and the order.

    An axis may be two that slide over each other: the position of a filter and of a result.
    """
    order_of = rng.sample(names, len(names))
    shape = []
    for name in order_of:
        first, *rest = name.split("+")
        shape.append(axes[first] + (axes[rest[0]] - 1 if rest else 0))
    return te.placeholder(shape, dtype, "x"), order_of


def read(source, order_of, variables):
    """Return the element of a tensor at the point that the variables are at."""
    indices = []
    for name in order_of:
        first, *rest = name.split("+")
        indices.append(variables[first] + (variables[rest[0]] if rest else 0))
    return source(*indices)


def extents(rng, names):
    choices = {"n": [1, 2, 5], "c": [1, 3, 16, 33], "k": [1, 5, 16, 31, 64], "h": [1, 5, 8, 13]}
    choices |= {"w": [1, 7, 14], "r": [1, 3], "s": [1, 3], "i": [1, 7, 16, 65], "j": [1, 12, 40]}
    return {name: rng.choice(choices[name]) for name in names}


FORMS = {  # the dimensions of both factors, those of the result, what is summed over
    "product": (["i", "c"], ["c", "j"], ["i", "j"], ["c"]),
    "batched": (["n", "i", "c"], ["n", "c", "j"], ["n", "i", "j"], ["c"]),
    "convolution": (["n", "h+r", "w+s", "c"], ["r", "s", "c", "k"], ["n", "h", "w", "k"], "rsc"),
    "weights": (["n", "h+r", "w+s", "c"], ["n", "h", "w", "k"], ["r", "s", "c", "k"], "nhw"),
    "depthwise": (["n", "h+r", "w+s", "c"], ["r", "s", "c"], ["n", "h", "w", "c"], "rs"),
    "depthwise weights": (["n", "h+r", "w+s", "c"], ["n", "h", "w", "c"], ["r", "s", "c"], "nhw"),
}


def contraction(rng, form, dtype):
    """Return the inputs and the output of a form, each with its dimensions in random order."""
    first, second, result, summed = FORMS[form]
    names = {part for name in (*first, *second) for part in name.split("+")}
    axes = extents(rng, sorted(names))
    inputs = [placeholder(rng, dims, axes, dtype) for dims in (first, second)]
    result, summed = rng.sample(result, len(result)), rng.sample(list(summed), len(summed))
    reduced = {name: te.reduce_axis((0, axes[name]), name) for name in summed}

    def element(*at):
        variables = {**dict(zip(result, at, strict=True)), **reduced}
        a, b = (wide(read(x, dims, variables), dtype) for x, dims in inputs)
        return te.sum(a * b, axis=list(reduced.values()))

    output = te.compute([axes[name] for name in result], element, name="y")
    return [x for x, _ in inputs], output


def with_map(rng, inputs, output):
    """Return a result with a map behind it, perhaps in another order of dimensions."""
    places = rng.sample(range(len(output.shape)), len(output.shape))
    old = te.placeholder([output.shape[p] for p in places], str(output.dtype), "old")

    def element(*at):
        return old(*at) + output(*(at[places.index(d)] for d in range(len(places)))) * 2

    return [*inputs, old], te.compute(old.shape, element, name="z")


def values_of(tensor, seed):
    generator = np.random.default_rng(seed)
    shape, dtype = [int(n) for n in tensor.shape], str(tensor.dtype)
    if dtype == "int32":
        return generator.integers(-5, 6, shape).astype(dtype)
    values = generator.uniform(-1, 1, shape)
    return values.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def random_costs(rng):
    """Return costs by which loops are cut in every way, with caches of some kilobytes."""
    cache = rng.choice([1 << 12, 1 << 15, 5 << 17])
    return ContractionCosts(
        near_bytes=cache,
        max_partial_bytes=cache,
        min_terms_per_part=rng.choice([8, 256]),
        min_panel_reuse=rng.choice([1, 1536]),
        step_cycles=rng.choice([1.0, 3.0]),
        min_copy_reuse=rng.choice([1, 128]),
        far_step_bytes=rng.choice([4, 1024]),
    )


def results_of(func, scheduled, inputs, output, seed):
    """Run a kernel as built and as scheduled on the same values; return both results."""
    named = {"stock": func, "scheduled": scheduled}
    mod = tvm.IRModule({name: f.with_attr("global_symbol", name) for name, f in named.items()})
    library = compile_library(mod, HOST)
    arguments = [guarded_tensor(values_of(x, seed + i)) for i, x in enumerate(inputs)]
    results = {name: guarded_tensor(values_of(output, 99)) for name in named}
    for name, result in results.items():
        library[name](*arguments, result)
    return [results[name].numpy().astype("float64") for name in named]


@pytest.mark.parametrize("seed", range(32))
def test_random_contractions(seed, monkeypatch):
    rng = random.Random(seed)
    monkeypatch.setattr(replace, "SMALL", 100)
    costs = random_costs(rng)
    line_bytes = rng.choice([8, 64])
    dtype = rng.choice(["float32", "float32", "float64", "float16", "bfloat16", "int32"])
    inputs, output = contraction(rng, list(FORMS)[seed % len(FORMS)], dtype)
    if rng.random() < 0.5:
        inputs, output = with_map(rng, inputs, output)
    func = create_prim_func([*inputs, output])
    processor = dataclasses.replace(rng.choice(UNITS), contraction=costs, line_bytes=line_bytes)
    scheduled = cpu.schedule_loops(func, processor)
    expected, actual = results_of(func, scheduled, inputs, output, seed)
    bound = TOLERANCE[dtype] * np.abs(expected).max()
    np.testing.assert_allclose(actual, expected, rtol=0, atol=bound)
