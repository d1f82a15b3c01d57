"""Results added to buffers that the caller gives: one parameter that is read and written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import te, tirx
from tvm.ir import prim

from ...errors import ArgumentError
from ...ir.kernel_rewrite import replace_realized
from ...ir.kernel_structure import statements_of, substitute_values
from ...ir.loops import sequence
from ...ir.visits import nodes_in
from ..backprop import wide
from ..graph import operations, sources
from ..kinds import map_stage
from ..scatter import scatter_into, scatters_of
from ..walk import Expr, identity, is_load, loaded, substituted, tensor_key

Accumulation = tuple[te.Tensor, te.Tensor]
"""A result, and the placeholder of the buffer that it is added to."""


def accumulations(accumulate: Any, args: Sequence[Any]) -> list[Accumulation]:
    """The accumulations that a caller asks for, checked.

    Parameters
    ----------
    accumulate : mapping from Tensor to Tensor, or sequence of pairs, or None
    args : sequence of Tensor or Var

    Raises
    ------
    ArgumentError
    """
    entries = [] if accumulate is None else accumulate
    entries = list(entries.items()) if isinstance(entries, Mapping) else entries
    if not isinstance(entries, list | tuple) or not all(map(_is_pair, entries)):
        raise ArgumentError(
            "accumulate must map outputs to buffers, both tensors, or be a list of such pairs, not "
            f"{accumulate!r} (the dtype of indices is given by index_dtype_override=)"
        )
    pairs: list[Accumulation] = []
    for output, buffer in entries:
        _check(output, buffer, args)
        if any(tensor_key(other) == tensor_key(buffer) for _, other in pairs):
            raise ArgumentError(
                f"two outputs are to be added to the buffer {buffer.op.name}; add them up in a "
                "stage of their own, and accumulate that"
            )
        pairs.append((output, buffer))
    return pairs


def _is_pair(pair: Any) -> bool:
    return (
        isinstance(pair, list | tuple)
        and len(pair) == 2
        and all(isinstance(tensor, te.Tensor) for tensor in pair)
    )


def _check(output: te.Tensor, buffer: te.Tensor, args: Sequence[Any]) -> None:
    """Raise unless an output can be added to a buffer."""
    name = buffer.op.name
    count = sum(isinstance(a, te.Tensor) and tensor_key(a) == tensor_key(buffer) for a in args)
    if not isinstance(buffer.op, te.PlaceholderOp) or count != 1:
        raise ArgumentError(
            f"the buffer {name}, to which {output.op.name} is to be added, must be a placeholder "
            f"and once among the arguments; it is there {count} times"
        )
    analyzer = tvm.sym.Analyzer()
    fits = len(output.shape) == len(buffer.shape) and all(
        analyzer.can_prove_equal(a, b) for a, b in zip(output.shape, buffer.shape, strict=True)
    )
    if str(output.dtype) != str(buffer.dtype) or not fits or str(buffer.dtype) == "bool":
        raise ArgumentError(
            f"{output.op.name} ({output.dtype}, {list(output.shape)}) cannot be added to the "
            f"buffer {name} ({buffer.dtype}, {list(buffer.shape)}): they must be numbers of one "
            "dtype, and provably of one shape"
        )


def accumulated(pairs: Sequence[Accumulation], others: Sequence[te.Tensor]) -> list[te.Tensor]:
    """For each pair, the stage whose output is to be written over the buffer.

    Such a stage reads no buffer of `pairs` but its own, and that only at the element that it
    writes. So the buffers keep their old values for all other stages, if these come before.

    Parameters
    ----------
    pairs : sequence of (Tensor, Tensor)
    others : sequence of Tensor
        What else the function computes.
    """
    buffers = {tensor_key(buffer) for _, buffer in pairs}
    outputs = [output for output, _ in pairs]
    uses = Counter(map(tensor_key, [*others, *outputs]))
    for op in operations(*others, *outputs):
        uses.update(map(tensor_key, sources(op)))

    def stage(output: te.Tensor, buffer: te.Tensor) -> te.Tensor:
        reads_buffer = any(tensor_key(tensor) in buffers for tensor in sources(output.op))
        # A scatter adds in place, if nobody else needs its sum and it reads no buffer itself.
        if scatters_of(output.op) and not reads_buffer and uses[tensor_key(output)] == 1:
            return scatter_into(output.op)
        return _sum(output, buffer)

    return [stage(output, buffer) for output, buffer in pairs]


def _sum(output: te.Tensor, buffer: te.Tensor) -> te.Tensor:
    """The sum of a result and a buffer; narrow floats are added in float32.

    The result goes through memory even where it is a cast: computed in place, it might read
    elements of the buffer that are overwritten already.
    """
    dtype = str(buffer.dtype)
    term = _before_rounding(output)

    def total(*position: Any) -> Expr:
        before, more = (tensor(*position).astype(wide(dtype)) for tensor in (buffer, term))
        return (before + more).astype(dtype)

    return map_stage(buffer.shape, total, name=f"{buffer.op.name}_sum")


def _before_rounding(output: te.Tensor) -> te.Tensor:
    """A result as it is before its last stage rounds it to a narrow float."""
    op = output.op
    dtype = str(output.dtype)
    if not isinstance(op, te.ComputeOp) or dtype == wide(dtype):
        return output
    body = op.body[int(output.value_index)]
    if not isinstance(body, prim.Cast) or str(body.value.ty) != wide(dtype):
        return output
    if is_load(body.value):
        source, indices = loaded(body.value)
        if [*map(identity, indices)] == [identity(axis.var) for axis in op.axis]:
            return source

    def value(*position: Any) -> Expr:
        return substituted(body.value, zip([a.var for a in op.axis], position, strict=True))

    return map_stage(output.shape, value, name=f"{op.name}_{wide(dtype)}")


def overwriting(func: tirx.PrimFunc, shared: Mapping[int, int]) -> tirx.PrimFunc:
    """A function with some parameters written over others, after all other stages.

    Parameters
    ----------
    func : PrimFunc
        Of stages, each of which writes one of the parameters that go, or none.
    shared : mapping from int to int
        From positions of parameters that go to those that they are written over.
    """
    table = {func.params[gone]: func.params[kept] for gone, kept in shared.items()}
    statements = statements_of(func.body.block.body)
    last = [statement for statement in statements if _writes(statement, table)]
    first = [statement for statement in statements if not _writes(statement, table)]
    body = replace_realized(func.body, body=sequence(*first, *last))
    body = substitute_values(body, table)
    params = [param for number, param in enumerate(func.params) if number not in shared]
    return tirx.PrimFunc(params, body, func.ret_type, attrs=func.attrs)


def _writes(statement: Any, buffers: Mapping[Any, Any]) -> bool:
    """Whether a statement stores to one of some buffers."""
    return any(store.buffer in buffers for store in nodes_in(statement, tirx.BufferStore))
