"""Stands in for cuDNN on the emulated GPU: each problem as NumPy computes it, on the host.

It sees of a tensor what cuDNN sees: a pointer, and the extents and strides that the plan states. A
wrong stride, a workspace that is somebody's memory, and a plan for other tensors give wrong numbers
or an error here, as they would there.
"""

import math
from itertools import product

import numpy as np
import tvm_ffi

from graphgrad.runtime.cudnn.engine import NAME, given_tensors
from graphgrad.runtime.cudnn.nodes import ALIGNMENT, COMPARISONS
from graphgrad.runtime.cudnn.plans import Plan
from graphgrad.runtime.cudnn.problem import ATTENTION, ATTENTION_GRADIENT, CONTRACTED, MATMUL

STEPS = {
    "add": np.add,
    "multiply": np.multiply,
    "sqrt": np.sqrt,
    "divide": np.divide,
    "subtract": np.subtract,
    "abs": np.abs,
    "exp": np.exp,
    "log": np.log,
    "negative": np.negative,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "erf": np.vectorize(math.erf, otypes=["float32"]),
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "select": np.where,
    **{name: getattr(np, name) for name in COMPARISONS},
}
"""What the steps of epilogues compute."""

GARBAGE = 0xA5
"""What is left in workspaces."""


class Library:
    """The stand-in, while it is registered; counts what it computes.

    Attributes
    ----------
    computed : list of Problem
    """

    def __init__(self):
        self.computed = []

    def __enter__(self):
        tvm_ffi.register_global_func(NAME, self._compute, override=True)
        return self

    def __exit__(self, *_):
        tvm_ffi.remove_global_func(NAME)

    def _compute(self, *arguments):
        (text,) = (each for each in arguments if isinstance(each, str))
        *given, workspace = (each for each in arguments if not isinstance(each, str))
        plan = Plan.from_json(text)
        problem = plan.problem
        tensors, count = given_tensors(problem, given), len(problem.inputs)
        assert workspace.numel() >= plan.workspace
        workspace.copyfrom(np.full(workspace.shape, GARBAGE, "uint8"))
        views = [
            _strided(tensor.numpy().reshape(-1), form).astype("float64")
            for tensor, form in zip(tensors[:count], problem.inputs, strict=True)
        ]
        results = _COMPUTED.get(problem.op, _contraction)(problem, views)
        unwritten = [np.full(each.numel(), np.nan, each.numpy().dtype) for each in given[count:]]
        memories = unwritten * (len(problem.outputs) if problem.joined else 1)
        for memory, form, result in zip(memories, problem.outputs, results, strict=True):
            _strided(memory, form)[...] = result
        is_nan = any(np.isnan(result).any() for result in results)
        for tensor, memory in zip(given[count:], unwritten, strict=True):
            assert is_nan or not np.isnan(memory.astype("float64")).any()
            tensor.copyfrom(memory.reshape(tensor.shape))
        self.computed.append(problem)


def _contraction(problem, views):
    """The outputs of a contraction; its epilogue is computed in float32."""
    factors, others = views[:CONTRACTED], views[CONTRACTED:]
    first = _product(*factors) if problem.op == MATMUL else _convolution(problem, *factors)
    values = [each.astype("float32") for each in (first, *others)]
    with np.errstate(all="ignore"):
        for step in problem.epilogue:
            operands = [values[x] if isinstance(x, int) else np.float32(x) for x in step.operands]
            values.append(STEPS[step.op](*operands))
    return [values[number] for number in problem.results]


def _strided(flat, form):
    """A flat array with the extents and strides of a form; it must lie within the array."""
    assert str(flat.dtype) == form.dtype
    assert form.reach <= flat.size and form.offset_bytes % ALIGNMENT == 0
    strides = [stride * flat.itemsize for stride in form.strides]
    return np.lib.stride_tricks.as_strided(flat[form.offset :], form.shape, strides)


def _weights(problem, query, key):
    """The scores of attention, and for each row the logarithm of the sum of exponentials."""
    groups = query.shape[1] // key.shape[1]
    scores = problem.scale * query @ np.repeat(key, groups, 1).swapaxes(2, 3)
    if problem.causal:
        scores = np.where(np.tri(*scores.shape[2:], dtype=bool), scores, -np.inf)
    maximum = scores.max(-1, keepdims=True)
    return scores, maximum + np.log(np.exp(scores - maximum).sum(-1, keepdims=True))


def _attention(problem, views):
    query, key, value = views
    scores, logsumexp = _weights(problem, query, key)
    groups = query.shape[1] // key.shape[1]
    return np.exp(scores - logsumexp) @ np.repeat(value, groups, 1), logsumexp


def _attention_gradient(problem, views):
    query, key, value, y, logsumexp, ct = views
    scores, _ = _weights(problem, query, key)
    weights = np.exp(scores - logsumexp)
    batch, heads, length = key.shape[:3]
    groups = query.shape[1] // heads
    every_key, every_value = (np.repeat(x, groups, 1) for x in (key, value))
    slopes = weights * (ct @ every_value.swapaxes(2, 3) - (ct * y).sum(-1, keepdims=True))
    slopes *= problem.scale

    def shared(x):
        return x.reshape(batch, heads, groups, length, -1).sum(2)

    of_key, of_value = slopes.swapaxes(2, 3) @ query, weights.swapaxes(2, 3) @ ct
    return slopes @ every_key, shared(of_key), shared(of_value)


_COMPUTED = {ATTENTION: _attention, ATTENTION_GRADIENT: _attention_gradient}


def _product(a, b):
    return a @ b


def _convolution(problem, first, second):
    """A convolution, or one of its gradients, tap by tap."""
    groups = problem.data.shape[1] // problem.weights.shape[1]
    axes = len(problem.strides)
    padding = list(zip(problem.padding_before, problem.padding_after, strict=True))
    padded = [
        extent + before + after
        for extent, (before, after) in zip(problem.data.shape[2:], padding, strict=True)
    ]
    outputs = problem.result.shape[2:]
    n, channels, k = problem.data.shape[0], problem.data.shape[1], problem.weights.shape[0]
    grouped = {
        "data": (n, groups, channels // groups),
        "weights": (groups, k // groups, channels // groups),
        "result": (n, groups, k // groups),
    }
    taps = list(product(*map(range, problem.weights.shape[2:])))

    def window(tap):
        steps = zip(tap, problem.dilation, problem.strides, outputs, strict=True)
        return tuple(slice(t * d, t * d + (o - 1) * s + 1, s) for t, d, s, o in steps)

    def parts(array, name):
        return array.reshape(*grouped[name], *array.shape[2:])

    if problem.op == "conv_data_gradient":
        ct, w = parts(first, "result"), parts(second, "weights")
        result = np.zeros((*grouped["data"], *padded))
        for tap in taps:
            at = (..., *window(tap))
            result[at] += np.einsum("ngk...,gkc->ngc...", ct, w[(..., *tap)])
        inner = tuple(
            slice(before, before + extent)
            for extent, (before, _) in zip(problem.data.shape[2:], padding, strict=True)
        )
        return result[(..., *inner)].reshape(problem.output.shape)
    x = parts(np.pad(first, [(0, 0), (0, 0), *padding]), "data")
    if problem.op == "conv_forward":
        w = parts(second, "weights")
        result = np.zeros((*grouped["result"], *outputs))
        for tap in taps:
            at = (..., *window(tap))
            result += np.einsum("ngc...,gkc->ngk...", x[at], w[(..., *tap)])
        return result.reshape(problem.output.shape)
    ct = parts(second, "result")
    result = np.zeros((*grouped["weights"], *problem.weights.shape[2:]))
    letters = "xyz"[:axes]
    for tap in taps:
        at = (..., *window(tap))
        result[(..., *tap)] = np.einsum(f"ngc{letters},ngk{letters}->gkc", x[at], ct)
    return result.reshape(problem.output.shape)
