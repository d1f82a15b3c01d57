"""Forward mode: the product of the Jacobian with tangents, by differentiating twice.

The vector-Jacobian product is linear in its cotangents, and its derivative by them is the
Jacobian (J. Townsend, "A new trick for calculating Jacobian vector products", 2017). Nothing of
the first sweep is left but what the tangents need.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import te

from .gradient import filled, te_gradient
from .graph import listed


def te_jvp(
    output: te.Tensor | Sequence[te.Tensor],
    inputs: te.Tensor | Sequence[te.Tensor],
    tangents: te.Tensor | Sequence[te.Tensor | None],
) -> list[te.Tensor]:
    """Return the Jacobian-vector product of tensor expressions.

    Parameters
    ----------
    output : Tensor or sequence of Tensor
        Of floats.
    inputs : Tensor or sequence of Tensor
        Placeholders or intermediate results, of floats.
    tangents : Tensor or sequence
        One for each input, of its shape and dtype; None for an input that stays as it is.

    Returns
    -------
    list of Tensor
        The tangent of each output, of its shape and dtype.

    Raises
    ------
    ArgumentError
        A tangent does not fit its input.
    NotDifferentiableError
        An output or an input is not of floats.
    MissingGradientError
        A stage on the way has no known derivative; the error names it.
    """
    outputs = listed(output)
    # Any cotangents do: the result does not depend on them.
    heads = [filled(tensor, 1.0, "head") for tensor in outputs]
    return te_gradient(te_gradient(outputs, inputs, heads), heads, tangents)
