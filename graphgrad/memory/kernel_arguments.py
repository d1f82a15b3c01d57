"""The tensors of a function's parameters, and those that its kernels get.

Where these come from, and how they are aligned, is told of a function that allocates explicitly,
and calls kernels with their outputs as arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, tirx

from .alias import Aliases
from .regions import Source


@dataclass(frozen=True)
class KernelCall:
    """A call of a kernel.

    Attributes
    ----------
    name : str
        That of the kernel.
    kernel : tirx.PrimFunc
    arguments : sequence of relax expressions
    origins : sequence
        For each argument, the sources of the tensors that it may be, or be a view of all of; none
        of what is no tensor.
    is_in_branch : bool
    """

    name: str
    kernel: tirx.PrimFunc
    arguments: Sequence[Any]
    origins: Sequence[Sequence[Source]]
    is_in_branch: bool


def tensors_of(value: Any, path: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], Any]]:
    """Yield each tensor of a parameter: the indices into its tuples, and it or a member of it."""
    if isinstance(value.ty, relax.TupleType):
        for index in range(len(value.ty.fields)):
            yield from tensors_of(relax.TupleGetItem(value, index), (*path, index))
    elif isinstance(value.ty, relax.TensorType):
        yield path, value


def name_of(tensor: Any) -> str:
    """A tensor's name in messages: its parameter's, with the indices into its tuples."""
    if isinstance(tensor, relax.TupleGetItem):
        return f"{name_of(tensor.tuple_value)}[{tensor.index}]"
    return str(getattr(tensor, "name", "constant"))


def bound(tensor: Any, bindings: list[Any]) -> Any:
    """A tensor as an argument of a call: a member of a tuple is bound to a variable first."""
    if not isinstance(tensor, relax.TupleGetItem):
        return tensor
    projection = relax.TupleGetItem(bound(tensor.tuple_value, bindings), tensor.index)
    member = relax.Var("member", tensor.ty)
    bindings.append(relax.VarBinding(member, projection))
    return member


def kernel_calls(aliases: Aliases, function: relax.Function) -> list[KernelCall]:
    """The calls of kernels in a function, in order."""
    functions = aliases.module.functions
    outermost = {binding.var for block in function.body.blocks for binding in block.bindings}
    return [
        KernelCall(
            call.op.name_hint,
            functions[call.op],
            list(call.args),
            [aliases.origins(aliases.value(argument)) for argument in call.args],
            var not in outermost,
        )
        for var, call in list(aliases.calls.items())
        if isinstance(call.op, tvm.ir.GlobalVar) and isinstance(functions[call.op], tirx.PrimFunc)
    ]


def alignments(calls: Iterable[KernelCall]) -> dict[Source, int]:
    """The alignment, in bytes, that kernels rely on, of the tensors that they get."""
    alignment_of: dict[Source, int] = {}
    for call in calls:
        for param, origins in zip(call.kernel.params, call.origins, strict=True):
            if tirx.is_buffer_var(param):
                needed = int(param.ty.data_alignment)
                for origin in origins:
                    alignment_of[origin] = max(alignment_of.get(origin, 1), needed)
    return alignment_of
