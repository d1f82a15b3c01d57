"""Attention and its gradient as operation graphs of cuDNN, which it computes in one kernel.

Dao, *FlashAttention-2* (2023): neither keeps a matrix of scores in memory. cuDNN has an operation
for each, too; that of the gradient adds up q̄ by atomic additions of floats, in another order from
run to run, and no note of its engines says so: its machine code does. In the graph here q̄ is a
product, for which cuDNN keeps the cotangents of the scores in its workspace.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .backend import Descriptor
from .nodes import Nodes
from .problem import ATTENTION, Problem, TensorForm, strides_of

_ADD, _MAXIMUM = 0, 3
"""Kinds of reductions."""

_ROWS, _COLUMNS = 2, 3
"""Axes of the scores, behind the batch and the heads."""


def attention_nodes(problem: Problem) -> Nodes:
    """The graph of attention, or of its gradient."""
    # Matrices that are multiplied from the right come transposed.
    transposed = {1} if problem.op == ATTENTION else {1, 2}
    nodes = Nodes(
        [
            _transposed(form, form.dtype) if place in transposed else form
            for place, form in enumerate(problem.tensors)
        ]
    )
    add = _add_forward if problem.op == ATTENTION else _add_gradient
    add(nodes, problem)
    return nodes


def _add_forward(nodes: Nodes, problem: Problem) -> None:
    """y = softmax(scale · q kᵀ) v, and the logarithms of the rows' sums of exponentials."""
    query, key, value, y, logsumexp = nodes.tensors
    form, rows = _scores(problem), _rows(problem)
    logits = _masked(nodes, problem, _logits(nodes, problem, query, key))
    maximum = nodes.reduced(_MAXIMUM, logits, rows)
    powers = nodes.computed("exp", [nodes.computed("subtract", [logits, maximum], form)], form)
    total = nodes.reduced(_ADD, powers, rows)
    nodes.pointwise("add", [maximum, nodes.computed("log", [total], rows)], logsumexp)
    weights = nodes.between(form, problem.inputs[0].dtype)
    nodes.pointwise("divide", [powers, total], weights)
    nodes.product(weights, value, y)


def _add_gradient(nodes: Nodes, problem: Problem) -> None:
    """q̄ = S̄ k, k̄ = S̄ᵀ q and v̄ = wᵀ ȳ, with S̄ = scale · w ∘ (ȳ vᵀ − Σ ȳ ∘ y)."""
    query, key, value, y, logsumexp, ct, of_query, of_key, of_value = nodes.tensors
    form, rows = _scores(problem), _rows(problem)
    half = problem.inputs[0].dtype
    sums = nodes.reduced(_ADD, nodes.computed("multiply", [ct, y], problem.inputs[3]), rows)
    # cuDNN computes these before all else, and reads them from memory.
    inner = nodes.scratch(rows)
    nodes.pointwise("multiply", [sums, nodes.constant(1.0, len(rows.shape))], inner)
    logits = _logits(nodes, problem, query, key)
    logits = nodes.computed("subtract", [logits, logsumexp], form)
    weights = nodes.computed("exp", [_masked(nodes, problem, logits)], form)
    _add_shared(
        nodes,
        problem,
        [nodes.reshaped(weights, _transposed(form, half)), ct],
        of_value,
        problem.inputs[2].shape[3],
    )
    slopes = nodes.between(form)
    nodes.product(ct, value, slopes)
    slopes = nodes.computed("subtract", [slopes, inner], form)
    slopes = nodes.computed("multiply", [slopes, weights], form)
    slopes = nodes.computed("multiply", [slopes, _scale(nodes, problem)], form)
    _add_shared(
        nodes,
        problem,
        [nodes.reshaped(slopes, _transposed(form, half)), query],
        of_key,
        problem.inputs[1].shape[3],
    )
    nodes.product(slopes, nodes.reshaped(key, problem.inputs[1]), of_query)


def _add_shared(
    nodes: Nodes,
    problem: Problem,
    factors: Sequence[Descriptor],
    result: Descriptor,
    features: int,
) -> None:
    """A product for each head of the queries, summed over those that share a head of keys."""
    a, b = factors
    batch, heads, length, _ = problem.inputs[1].shape
    every = problem.inputs[0].shape[1]
    if heads == every:
        nodes.product(a, b, result)
        return
    shape = (batch, every, length, features)
    dtype = problem.inputs[0].dtype
    products = nodes.between(TensorForm(shape, strides_of(shape), dtype), dtype)
    nodes.product(a, b, products)
    nodes.reduce(_ADD, products, result)


def _scores(problem: Problem) -> TensorForm:
    """The form of the scores: batch, heads, queries, keys."""
    shape = (*problem.inputs[0].shape[:3], problem.inputs[1].shape[2])
    return TensorForm(shape, strides_of(shape), "float32")


def _rows(problem: Problem) -> TensorForm:
    """The form of one number for each query."""
    shape = (*problem.inputs[0].shape[:3], 1)
    return TensorForm(shape, strides_of(shape), "float32")


def _transposed(form: TensorForm, dtype: str) -> TensorForm:
    """The form of transposed matrices, in the same memory."""
    shape, strides = form.shape, form.strides
    return TensorForm(
        (*shape[:-2], shape[-1], shape[-2]), (*strides[:-2], strides[-1], strides[-2]), dtype
    )


def _scale(nodes: Nodes, problem: Problem) -> Descriptor:
    return nodes.constant(problem.scale, len(problem.inputs[0].shape))


def _logits(nodes: Nodes, problem: Problem, query: Descriptor, key: Descriptor) -> Descriptor:
    """The scaled products of queries and keys."""
    form = _scores(problem)
    products = nodes.between(form)
    nodes.product(query, key, products)
    return nodes.computed("multiply", [products, _scale(nodes, problem)], form)


def _masked(nodes: Nodes, problem: Problem, logits: Descriptor) -> Descriptor:
    """The scores, and −∞ for keys behind the query where attention is causal."""
    if not problem.causal:
        return logits
    form = _scores(problem)
    rows, columns = (nodes.indices(logits, axis, form) for axis in (_ROWS, _COLUMNS))
    is_attended = nodes.between(form, "bool")
    nodes.pointwise("greater_equal", [rows, columns], is_attended, "bool")
    infinity = nodes.constant(-math.inf, len(form.shape))
    return nodes.computed("select", [is_attended, logits, infinity], form)
