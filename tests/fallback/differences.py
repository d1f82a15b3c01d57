"""Derived gradients, compiled, against differences of what they are derived from."""

import numpy as np
from tvm import te

from graphgrad.fallback import create_prim_func
from graphgrad.fallback.gradient import te_gradient
from tests.fallback.interpreter import evaluate
from tests.fallback.running import executable, unwritten

STEP = 1e-6


def compiled(outputs, tensors):
    """Return a function from arrays for some tensors to the values of outputs.

    The buffers of the outputs hold no numbers before.
    """
    call = executable(create_prim_func([*tensors, *outputs]))

    def values(arrays):
        given = [np.ascontiguousarray(array) for array in arrays]
        return call(*given, *unwritten(*outputs))[len(given) :]

    return values


def interpreted(outputs, tensors):
    """Return what `compiled` returns, by the interpreter."""
    return lambda arrays: evaluate(outputs, list(zip(tensors, arrays, strict=True)))


def check(outputs, inputs, others=(), *, forward=interpreted, order=1, tolerance=1e-6):
    """Check the gradient of outputs by inputs, all of float64, along random directions.

    Parameters
    ----------
    outputs : list of Tensor
    inputs, others : list of (Tensor, array)
        What they depend on; the gradient is by the inputs.
    forward : callable
        How the outputs are evaluated.
    order : int
        With 2, the gradient of the gradient is checked too, by the inputs and the heads.
    tolerance : float
        Relative to the sum of the magnitudes of what is compared.

    Returns
    -------
    list of array
        The gradient.
    """
    generator = np.random.default_rng(0)
    heads = []
    for number, output in enumerate(outputs):
        shape = [int(extent) for extent in output.shape]
        head = te.placeholder(shape, "float64", name=f"head{order}{number}")
        heads.append((head, generator.standard_normal(shape)))
    known = [*inputs, *others, *heads]
    tensors = [tensor for tensor, _ in known]
    arrays = [array for _, array in known]
    gradient = te_gradient(outputs, tensors[: len(inputs)], tensors[-len(heads) :])
    values = compiled(gradient, tensors)(arrays)
    if forward is interpreted:
        for given, expected in zip(values, interpreted(gradient, tensors)(arrays), strict=True):
            np.testing.assert_allclose(given, expected, rtol=1e-9, atol=1e-12)
    evaluated = forward(outputs, tensors)
    for i, given in enumerate(values):
        direction = generator.standard_normal(given.shape)
        ahead, behind = (
            evaluated([*arrays[:i], arrays[i] + sign * STEP * direction, *arrays[i + 1 :]])
            for sign in (1, -1)
        )
        weights = arrays[-len(heads) :]
        terms = [w * (a - b) for w, a, b in zip(weights, ahead, behind, strict=True)]
        expected = sum(term.sum() for term in terms) / (2 * STEP)
        scale = np.abs(given * direction).sum() + abs(expected) + 1e-3
        error = abs((given * direction).sum() - expected)
        assert error < tolerance * scale, f"{tensors[i].op.name}: {values}, {error} of {scale}"
    if order > 1:
        check(gradient, [*inputs, *heads], others, forward=compiled, order=order - 1)
    return values
