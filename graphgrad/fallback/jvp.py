"""Forward mode: the product of the Jacobian with tangents, by differentiating twice.

The vector-Jacobian product is linear in its cotangents, and its derivative by them is the
Jacobian (J. Townsend, "A new trick for calculating Jacobian vector products", 2017). Nothing of
the first sweep is left but what the tangents need.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import te

from .arguments import check_floats, tensors_like, tensors_of
from .gradient import filled, te_gradient


def te_jvp(
    output: te.Tensor | Sequence[te.Tensor],
    inputs: te.Tensor | Sequence[te.Tensor],
    tangents: te.Tensor | Sequence[te.Tensor | None],
    *,
    pads: bool = True,
) -> list[te.Tensor]:
    """The Jacobian-vector product of tensor expressions.

    Parameters
    ----------
    output : Tensor or sequence of Tensor
        Of floats.
    inputs : Tensor or sequence of Tensor
        Placeholders or intermediate results, of floats.
    tangents : Tensor or sequence
        One for each input, of its shape and dtype; None for an input that stays as it is.
    pads : bool
        See `te_gradient`.

    Returns
    -------
    list of Tensor
        The tangent of each output, of its shape and dtype.

    Raises
    ------
    ArgumentError
        An argument is no tensor, or a tangent does not fit its input.
    NotDifferentiableError
        An output or an input is not of floats.
    MissingGradientError
        A stage on the way has no known derivative; the error names it.
    """
    outputs, inputs = tensors_of("output", output), tensors_of("input", inputs)
    check_floats("output", outputs)
    check_floats("input", inputs)
    tangents = tensors_like("tangent", tangents, "input", inputs)
    # Any cotangents do: the result does not depend on them.
    heads = [filled(tensor, 1.0, "head") for tensor in outputs]
    gradients = te_gradient(outputs, inputs, heads, pads=pads)
    return te_gradient(gradients, heads, tangents, pads=pads)
