"""The cotangent of a tensor from everything that is added to it: which form each part takes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce as fold
from typing import Any

from tvm import te, tirx

from .backprop import joined
from .contribution import Contribution
from .gather import gather
from .index_system import Axis, NotAffineError, invert
from .scatter import scatter_add
from .walk import Expr


def assembled(tensor: te.Tensor, parts: Sequence[Contribution | te.Tensor]) -> te.Tensor:
    """Return the cotangent of a tensor, of its shape and dtype.

    Parameters
    ----------
    tensor : Tensor
    parts : non-empty sequence of Contribution or Tensor
        What is to be summed; tensors are of the tensor's shape.
    """
    name = f"{tensor.op.name}_ct"
    stages = [part if isinstance(part, te.Tensor) else _stage(part, name) for part in parts]
    if len(stages) == 1 and str(stages[0].dtype) == str(tensor.dtype):
        return stages[0]

    def total(*position: Any) -> Expr:
        value = fold(lambda a, b: a + b, (stage(*position) for stage in stages))
        return value.astype(str(tensor.dtype))

    return te.compute(tensor.shape, total, name=name)


def _stage(part: Contribution, name: str) -> te.Tensor:
    """Return one contribution as a tensor of its own, in the dtype of its terms."""
    element = element_axes(part.tensor)
    try:
        inversion = invert(part.indices, part.axes, element)
    except NotAffineError:
        term = joined(part.terms) if len(part.terms) > 1 else part.terms[0]
        dtype = str(term.value.ty)
        return scatter_add(part.tensor.shape, dtype, part.axes, part.indices, term, name)
    return gather(part, inversion, element, name)


def element_axes(tensor: te.Tensor) -> list[Axis]:
    """Return loops over the elements of a tensor."""
    return [
        Axis(te.var(f"x{i}", str(extent.ty)), tirx.const(0, str(extent.ty)), extent)
        for i, extent in enumerate(tensor.shape)
    ]
