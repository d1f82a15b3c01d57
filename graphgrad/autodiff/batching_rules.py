"""How ops get one more axis in front, by name: those that keep their name with it.

A rule is given a call some of whose operands have the axis, and returns the call that computes the
same for all values, or None where it does not know; then the op's lowering gets the axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax

from ..ir.attributes import Attributes
from ..ir.calls import RESHAPES
from ..ir.tensor import Tensor, expression_of, type_shape
from ..ops import functional as op
from ..ops.conv import Layouts
from ..ops.elementwise import ELEMENTWISE
from ..tvm_fixes.hooks import change_attributes


@dataclass(frozen=True)
class Lane:
    """A tensor of the program with the axis.

    Attributes
    ----------
    tensor : Tensor
    batched : bool
        Whether it has the axis; else it is the same for all values.
    """

    tensor: Tensor
    batched: bool

    @property
    def rank(self) -> int:
        """The number of axes that it has without this one."""
        return self.tensor.ndim - self.batched


def is_batched(value: Any) -> bool:
    """Whether something among lanes, in nested lists, has the axis."""
    if isinstance(value, list):
        return any(map(is_batched, value))
    return isinstance(value, Lane) and value.batched


def many_of_type(ty: Any, extent: int) -> relax.TensorType:
    """The type of many values of a type."""
    return relax.TensorType([extent, *type_shape(ty)], str(ty.dtype))


@dataclass(frozen=True)
class Site:
    """A call in the old program.

    Attributes
    ----------
    call : relax.Call
    arguments : list
        For each argument a `Lane`, a list for a tuple of tensors, or the expression itself if it is
        no tensor.
    ty : type
        Of its result, without the axis.
    extent : int
        Of the axis.
    """

    call: relax.Call
    arguments: list[Any]
    ty: Any
    extent: int

    @property
    def attributes(self) -> Attributes:
        """The attributes of the call, in plain Python values."""
        return Attributes(self.call.attrs)

    def called(self, arguments: Sequence[Any], **changes: Any) -> relax.Call:
        """The same call of other arguments, with some attributes changed."""
        attributes = self.call.attrs
        if changes:
            attributes = change_attributes(attributes, changes.get)
        expressions = [expression_of(argument) for argument in arguments]
        return relax.Call(self.call.op, expressions, attributes, self.call.ty_args)

    def many(self, lane: Lane) -> Tensor:
        """A tensor with the axis; one that is the same for all values is repeated."""
        if lane.batched:
            return lane.tensor
        return op.broadcast_to(lane.tensor, [self.extent, *lane.tensor.shape])


BatchingRule = Callable[[Site], Any]
"""Returns what computes the results with the axis, a `Tensor` or a Relax expression; or None."""

BATCHING_RULES: dict[str, BatchingRule] = {}
"""The rules by the names of ops."""


def _rule(*names: str) -> Callable[[BatchingRule], BatchingRule]:
    def register(function: BatchingRule) -> BatchingRule:
        BATCHING_RULES.update(dict.fromkeys(names, function))
        return function

    return register


def _aligned(lane: Lane, rank: int) -> Tensor:
    """An operand of an op that broadcasts to a rank: the axis stays in front of all others."""
    x = lane.tensor
    if not lane.batched or lane.rank == rank:
        return x
    return op.reshape(x, [x.shape[0], *[1] * (rank - lane.rank), *x.shape[1:]])


@_rule(*sorted(ELEMENTWISE - {"relax.full_like", "relax.ewise_fma"}))
def _map(site: Site) -> Any:
    rank = len(site.ty.shape)
    arguments = [
        _aligned(argument, rank) if isinstance(argument, Lane) else argument
        for argument in site.arguments
    ]
    return site.called(arguments)


@_rule(*RESHAPES)
def _same_elements(site: Site) -> Any:
    x = site.arguments[0]
    return op.reshape(x.tensor, [site.extent, *type_shape(site.ty)])


@_rule("relax.broadcast_to")
def _broadcast_to(site: Site) -> Any:
    shape = type_shape(site.ty)
    x = _aligned(site.arguments[0], len(shape))
    return relax.op.broadcast_to(x.expr, [site.extent, *shape])


@_rule("relax.permute_dims")
def _permute_dims(site: Site) -> Any:
    x = site.arguments[0]
    axes = site.attributes.axes
    axes = reversed(range(x.rank)) if axes is None else axes
    return relax.op.permute_dims(x.tensor.expr, [0, *(1 + axis % x.rank for axis in axes)])


@_rule(*(f"relax.{name}" for name in ("sum", "mean", "max", "min", "prod", "variance", "std")))
def _reduction(site: Site) -> Any:
    x = site.arguments[0]
    axes = [1 + axis for axis in op.normalize_axes(site.attributes.axis, x.rank)]
    return site.called([x.tensor], axis=axes)


@_rule("relax.nn.softmax", "relax.nn.log_softmax", "relax.split", "relax.flip")
def _along_axis(site: Site) -> Any:
    x = site.arguments[0]
    return site.called([x.tensor], axis=1 + site.attributes.axis % x.rank)


@_rule("relax.concat")
def _concat(site: Site) -> Any:
    axis = site.attributes.axis
    (parts,) = site.arguments
    if axis is None or not isinstance(parts, list):
        return None
    tensors = [site.many(part).expr for part in parts]
    return relax.op.concat(tensors, axis=1 + axis % parts[0].rank)


@_rule("relax.matmul")
def _matmul(site: Site) -> Any:
    a, b = site.arguments
    if min(a.rank, b.rank) < 2:
        return None
    rank = max(a.rank, b.rank)
    return site.called([_aligned(a, rank), _aligned(b, rank)])


def _fold(lane: Lane, site: Site) -> Tensor:
    """A tensor whose first axis goes over the batches of all values."""
    x = site.many(lane)
    return op.reshape(x, [x.shape[0] * x.shape[1], *x.shape[2:]])


def _unfold(call: Any, site: Site) -> Any:
    """A result whose first axis goes over the batches of all values, with an axis for these."""
    emitter = next(lane.tensor.emitter for lane in site.arguments if isinstance(lane, Lane))
    return op.reshape(emitter.emit(call), [site.extent, *type_shape(site.ty)])


def _has_batch_first(site: Site) -> bool:
    """Whether the data of a convolution have their own batch in front."""
    layouts = Layouts.of(site.call.attrs, len(site.ty.shape) - 2)
    return layouts.data.startswith("N")


@_rule(*(f"relax.nn.conv{rank}d" for rank in (1, 2, 3)))
def _convolution(site: Site) -> Any:
    """Of weights that are the same for all values, the convolution of one long batch."""
    x, w = site.arguments
    if w.batched or not _has_batch_first(site):
        return None
    return _unfold(site.called([_fold(x, site), w.tensor]), site)


@_rule("graphgrad.conv_data_gradient")
def _convolution_data_gradient(site: Site) -> Any:
    ct, w, _ = site.arguments
    if w.batched or not _has_batch_first(site):
        return None
    first, *rest = type_shape(site.ty)
    shape = relax.ShapeExpr([site.extent * first, *rest])
    return _unfold(site.called([_fold(ct, site), w.tensor, shape]), site)
