"""What is given as outputs, inputs, heads and tangents, checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import te

from ..errors import ArgumentError, NotDifferentiableError
from .backprop import is_float, wide


def tensors_of(what: str, given: Any, optional: bool = False) -> list[Any]:
    """A tensor or several as a list.

    Parameters
    ----------
    what : str
        What they are given as.
    given : Tensor or sequence of Tensor
    optional : bool
        Whether there may be None among several.

    Raises
    ------
    ArgumentError
        Something is no tensor, or there is none.
    """
    several = isinstance(given, Sequence) and not isinstance(given, str)
    tensors = list(given) if several else [given]
    for tensor in tensors:
        if not isinstance(tensor, te.Tensor) and not (optional and several and tensor is None):
            raise ArgumentError(
                f"a {type(tensor).__name__} was given as {what}; it must be a te.Tensor, such as "
                "te.placeholder and te.compute return, or a list of them"
            )
    if not tensors:
        raise ArgumentError(f"no {what} was given; give one te.Tensor at least")
    return tensors


def tensors_like(
    what: str, given: Any, role: str, tensors: Sequence[te.Tensor]
) -> list[te.Tensor | None]:
    """A tensor for each of some others, of its shape and dtype; None where there is none.

    Raises
    ------
    ArgumentError
        There are more or fewer, or one does not fit.
    """
    values = tensors_of(what, given, optional=True)
    if len(values) != len(tensors):
        raise ArgumentError(
            f"there are {len(tensors)} {role}s, but {len(values)} {what}s; give one for each, None "
            f"for an {role} that has none"
        )
    for tensor, value in zip(tensors, values, strict=True):
        if value is not None and not _same_type(value, tensor):
            raise ArgumentError(
                f"the {what} is {value.dtype} of shape {list(value.shape)}; it must be as the "
                f"{role} {tensor.op.name}: {tensor.dtype} of shape {list(tensor.shape)}"
            )
    return values


def check_floats(role: str, tensors: Sequence[te.Tensor]) -> None:
    """Raise if a tensor is not of floats that have gradients.

    Raises
    ------
    NotDifferentiableError
    """
    for tensor in tensors:
        if not is_float(tensor.dtype):
            raise NotDifferentiableError(
                f"the {role} {tensor.op.name} is {tensor.dtype}, not float: it has no gradient; "
                f"leave it out of the {role}s"
            )
        try:
            wide(tensor.dtype)
        except NotDifferentiableError as error:
            raise NotDifferentiableError(f"the {role} {tensor.op.name}: {error}") from error


def _same_type(a: te.Tensor, b: te.Tensor) -> bool:
    """Whether the dtypes are equal and the shapes may be."""
    # Symbolic extents may be equal at run time: only a proven difference is one.
    analyzer = tvm.sym.Analyzer()
    return (
        str(a.dtype) == str(b.dtype)
        and len(a.shape) == len(b.shape)
        and not any(analyzer.can_prove(x != y) for x, y in zip(a.shape, b.shape, strict=True))
    )
