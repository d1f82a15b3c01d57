"""Which extern stages have a gradient: by what other stages compute the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import te

from ...errors import MissingGradientError, RuleError
from .. import keyed
from ..graph import rewritten
from ..lift.prim_func import lifted
from ..memo import DERIVED
from ..walk import tensor_key
from . import cumulative, ordering, selection, spectral, writes
from .match import function_of

Restatement = Callable[[Any], Sequence[te.Tensor | None] | None]
"""Given an extern stage, returns its outputs by other stages, or None if it is another function."""

_TABLE: dict[str, Restatement] = {
    "argsort_cpu": ordering.argsort,
    "cumprod_generic": cumulative.cumprod,
    "cumsum_generic": cumulative.cumsum,
    "dft_cpu": spectral.dft,
    "get_valid_counts": selection.get_valid_counts,
    "index_put.generic": writes.index_put,
    "scatter_elements.generic": writes.scatter_elements,
    "scatter_nd.generic": writes.scatter_nd,
    keyed.TAG: writes.by_sorting,
    "sort_cpu": ordering.sort,
    "stft_cpu": spectral.stft,
    "topk_cpu": ordering.topk,
}


def register(tag: str, restate: Restatement) -> Restatement:
    """Say what the extern stages of a tag compute, as stages whose gradients are known.

    Parameters
    ----------
    tag : str
        Of the stage (``te.extern(..., tag=...)``).
    restate : callable
        Given the stage (`te.ExternOp`), returns its outputs, of the same shapes and dtypes, as
        other stages compute them from ``op.inputs``. They may read the stage's own integer
        outputs. None for an output that depends on no float; None in all if the stage computes
        something else.

    Returns
    -------
    callable
        `restate`.

    Raises
    ------
    RuleError
        The arguments are not a tag and a function.

    Examples
    --------
    A product of matrices by a library:

    >>> register("my_matmul", lambda op: [topi.matmul(*op.inputs)])
    """
    if not isinstance(tag, str) or not tag or not callable(restate):
        raise RuleError(f"register takes a tag and a function, got {tag!r}, {restate!r}")
    _TABLE[tag] = restate
    # Gradients derived before may rest on what the tag stood for then.
    DERIVED.clear()
    return restate


def restated(op: Any) -> Sequence[te.Tensor | None]:
    """The outputs of an extern stage as other stages compute them: by its tag, else by its loops.

    Raises
    ------
    MissingGradientError
        It is not known what the stage computes.
    """
    restate = _TABLE.get(str(op.tag))
    try:
        outputs = restate(op) if restate else None
    except (LookupError, ValueError):  # it has not the inputs, loops or attributes
        outputs = None
    if outputs is not None:
        return outputs
    try:
        return _by_loops(op)
    except MissingGradientError as error:
        raise MissingGradientError(
            f"the stage {op.name} is an extern stage of tag {str(op.tag)!r}, whose gradient is not "
            "known; say what it computes by graphgrad.fallback.externs.register, or give the op a "
            f"gradient by gg.register_gradient. Of its loops, {error}"
        ) from error


def _by_loops(op: Any) -> Sequence[te.Tensor]:
    """The outputs of an extern stage as its loops compute them.

    Raises
    ------
    MissingGradientError
        They say more than tensor expressions can.
    """
    func = function_of(op)
    program = lifted(func, range(len(op.inputs), len(func.params)))
    tensors = {
        tensor_key(parameter): tensor
        for parameter, tensor in zip(program.parameters, op.inputs, strict=False)
        if parameter is not None
    }
    return rewritten(program.outputs, lambda stage: None, tensors)
