"""What kind of stage a derived stage is, written on it, so that nobody needs to guess.

The kind is the attribute ``graphgrad.kind`` of the stage; it becomes an annotation of the block
that the stage lowers to. No name is ever parsed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import tvm
from tvm import te, tirx

from ..tvm_fixes.hooks import compute_stage

_KIND = "graphgrad.kind"


class Kind(Enum):
    """The kinds of derived stages.

    CONTRACTION is a sum over loops of the product of two loads with affine indices, nothing else.
    RESIDUE_CLASS is one of those of a tensor's positions, by a contraction or a plain product.
    MERGE interleaves residue classes. PAD is a tensor with a border of zeros. MAP has no reduction,
    REDUCE is any other one; its body may hold conditions. SCATTER adds up serially.
    """

    CONTRACTION = "contraction"
    RESIDUE_CLASS = "residue_class"
    MERGE = "merge"
    PAD = "pad"
    MAP = "map"
    REDUCE = "reduce"
    SCATTER = "scatter"


def marked(kind: Kind) -> dict[str, str]:
    """The attributes of a stage of some kind."""
    return {_KIND: kind.value}


def map_stage(shape: Sequence[Any], body: Callable[..., Any], name: str) -> Any:
    """A stage of kind MAP: what `te.compute` returns."""
    return te.compute(tuple(shape), body, name=name, attrs=marked(Kind.MAP))


def stage_over(axes: Sequence[Any], body: Any, name: str, kind: Kind) -> Any:
    """A stage of one output, over given loops in whose variables its body is.

    Parameters
    ----------
    axes : sequence of Axis
        From 0, the variables of no other stage.
    body : Expr
    name : str
    kind : Kind
    """
    loops = [iteration(axis, tirx.IterVar.DataPar) for axis in axes]
    return compute_stage(name, "", marked(kind), loops, [body]).output(0)


def iteration(axis: Any, how: int) -> Any:
    """A loop as TVM's stages have it, of its elements or of what it reduces."""
    return tirx.IterVar(tvm.ir.Range.from_min_extent(axis.low, axis.extent), axis.var, how)


def copied(tensor: te.Tensor, name: str, shape: Sequence[Any] | None = None) -> te.Tensor:
    """A copy of a tensor, as a stage; of its shape written with other objects, if given."""
    return map_stage(tensor.shape if shape is None else shape, lambda *at: tensor[at], name)


def kind_of(op: Any) -> Kind | None:
    """The kind of a derived stage; None if it carries none."""
    attributes = op.attrs if isinstance(op, te.ComputeOp | te.ExternOp) else None
    return Kind(str(attributes[_KIND])) if attributes and _KIND in attributes else None
