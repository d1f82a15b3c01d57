"""One step of a loop as bindings, traced by calling its body once with variables of one step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax

from ..errors import ArgumentError
from ..ir.tensor import Emitter, Tensor, has_shape, same_shape, type_shape
from ..tvm_fixes.hooks import begin_block, end_block, identity
from .composed import variables_read_by

Tree = Any
"""A tensor, or None, or a list or tuple of trees."""


@dataclass(frozen=True)
class Step:
    """One step of a loop, and the values that the loop starts from.

    Attributes
    ----------
    start, rows : list of relax expression
        The first carry, and the tensors that have a row for each step.
    carry, x : list of relax.Var
        The carry before the step, and the step's rows.
    bindings : list of (Var, expression)
        The bindings of the body that depend on these.
    following, results : list of relax expression
        The carry behind the step, and the rows that it adds to the results.
    y : tree
        The results in the form in which the body returned them.
    """

    start: list[Any]
    rows: list[Any]
    carry: list[Any]
    x: list[Any]
    bindings: list[tuple[Any, Any]]
    following: list[Any]
    results: list[Any]
    y: Tree


def trace_step(
    target: Emitter, body: Callable[..., Any], init: Tree, xs: Tree, as_tensors: bool
) -> Step:
    """The body of a loop as bindings.

    What it computes from neither carry nor rows is written before the loop.

    Parameters
    ----------
    target : Emitter
        Writes before the loop.
    body : callable
        See `scan`.
    init, xs : trees
    as_tensors : bool
        The body is given `Tensor`s, else Relax variables.

    Raises
    ------
    ArgumentError
        The body returns no carry of the types that it was given.
    """
    builder = target.builder
    start, rows = (_bound(target, list(leaves_of(tree))) for tree in (init, xs))
    carry = [relax.Var(f"carry{i}", leaf.ty) for i, leaf in enumerate(start)]
    x = [relax.Var(f"x{i}", _row_type(leaf.ty)) for i, leaf in enumerate(rows)]
    body_arguments = [
        like(tree, [target.lift(var) if as_tensors else var for var in variables])
        for tree, variables in ((init, carry), (xs, x))
    ]
    begin_block(builder, dataflow=builder.current_block_is_dataflow())
    try:
        after, y = _checked(body(*body_arguments), init)
        bound = _bound(target, [*leaves_of(after), *leaves_of(y)])
    finally:
        block = end_block(builder)
    following, results = bound[: len(carry)], bound[len(carry) :]
    _check_types(carry, following)
    # The block is not part of the function: what is the same in all steps is emitted before the
    # loop, everything else becomes the step.
    changing = {*carry, *x}
    bindings = []
    for binding in block.bindings:
        if any(operand in changing for operand in variables_read_by(binding.value)):
            changing.add(binding.var)
            bindings.append((binding.var, _value(binding)))
        else:
            builder.emit_normalized(binding)
    return Step(start, rows, carry, x, bindings, following, results, y)


def leaves_of(tree: Tree) -> Iterator[Any]:
    """Yield the tensors of a tree."""
    if isinstance(tree, list | tuple):
        for subtree in tree:
            yield from leaves_of(subtree)
    elif tree is not None:
        yield tree


def like(tree: Tree, leaves: Iterable[Any]) -> Tree:
    """A tree of the same form with other tensors."""
    remaining = iter(leaves)

    def replace_leaves(item: Tree) -> Tree:
        if isinstance(item, list | tuple):
            return type(item)([replace_leaves(inner) for inner in item])
        return None if item is None else next(remaining)

    return replace_leaves(tree)


def _bound(target: Emitter, leaves: Sequence[Any]) -> list[Any]:
    """Tensors as Relax variables or constants; an expression that occurs twice is emitted once."""
    variables: dict[int, Any] = {}
    return [_variable(target, leaf, variables) for leaf in leaves]


def _variable(target: Emitter, leaf: Any, variables: dict[int, Any]) -> Any:
    """The variable or constant of a tensor; `variables` has those of expressions, by identity.

    Raises
    ------
    ArgumentError
        It is no tensor, or one of unknown shape.
    """
    value = leaf.expr if isinstance(leaf, Tensor) else leaf
    if isinstance(value, relax.Call | relax.TupleGetItem):
        if identity(value) not in variables:
            variables[identity(value)] = target.builder.emit(value)
        value = variables[identity(value)]
    if not isinstance(value, relax.Expr) or not isinstance(value.ty, relax.TensorType):
        raise ArgumentError(f"{leaf!r} is no tensor; scan takes nested lists and tuples of those")
    if not has_shape(value.ty):
        raise ArgumentError(
            f"scan takes tensors of known rank and shape, and was given {leaf} of type {value.ty}; "
            "give its shape by match_cast, outside the loop"
        )
    return value


def _row_type(ty: relax.TensorType) -> relax.TensorType:
    """The type of a row along the first axis."""
    shape = type_shape(ty)
    if not shape:
        raise ArgumentError("xs has a tensor of rank 0; each has a row for each step")
    return relax.TensorType(shape[1:], str(ty.dtype))


def _checked(result: Any, init: Tree) -> tuple[Tree, Tree]:
    """The carry and the results that a body returned, if the carry has the form of the first."""
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise ArgumentError(f"the body of scan returned {result!r}; it returns (carry, y)")
    carry, y = result
    if _form(carry) != _form(init):
        raise ArgumentError(
            f"the body of scan returned a carry of the form {_form(carry)}, and was given one of "
            f"the form {_form(init)}"
        )
    return carry, y


def _form(tree: Tree) -> str:
    """A tree as text, with a star for each tensor."""
    if isinstance(tree, list | tuple):
        return f"({', '.join(map(_form, tree))})"
    return "None" if tree is None else "*"


def _check_types(before: Sequence[Any], after: Sequence[Any]) -> None:
    """Raise unless a step leaves the types of the carry as they are."""
    for number, (old, new) in enumerate(zip(before, after, strict=True)):
        same = same_shape(type_shape(old.ty), type_shape(new.ty))
        if not same or str(old.ty.dtype) != str(new.ty.dtype):
            raise ArgumentError(
                f"the body of scan changes tensor {number} of the carry from {old.ty} to {new.ty}; "
                "its type must stay the same"
            )


def _value(binding: Any) -> Any:
    """The expression that a binding computes."""
    if isinstance(binding, relax.MatchCast):
        raise ArgumentError(
            "the body of scan has a match_cast, which is checked at run time; cast before the loop"
        )
    return binding.value
