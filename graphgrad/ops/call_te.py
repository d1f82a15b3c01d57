"""`call_te`: a tensor expression in a Relax program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax

from ..errors import ArgumentError
from ..fallback.kernels.expressions import kernel_of
from ..ir.kernel_names import name_kernel
from ..ir.tensor import Tensor
from ..tvm_fixes.hooks import identity
from .traced import Traced


def call_te(
    function: Callable[..., Any], *args: Any, name: str | None = None, **keywords: Any
) -> Any:
    """A call of a kernel that is made of tensor expressions, scans included.

    Parameters
    ----------
    function : callable
        Maps te.Tensors to one, or to several. It is given a placeholder for each tensor among
        `args` and `keywords`, in lists, tuples and dicts too, and everything else as it is.
    args, keywords : `Tensor`, relax expressions, numbers, strings, lists
        Symbolic extents (of dtype int64) among them are replaced like those in shapes. An
        expression that has not been emitted is emitted here. Arrays are refused: whether a kernel
        reads one (``relax.const(array, dtype)``) or the function its numbers is yours to say.
    name : str, optional
        Of the kernel; the function's name by default.

    Returns
    -------
    Tensor, list of Tensor or relax.Call
        Where `args` has a `Tensor` (in a rule, in a custom operator): the results. Else an
        expression that the current BlockBuilder, which now holds the kernel, is to emit.

    Raises
    ------
    ArgumentError
        There is no builder to write into, an argument is an array, a tuple of Relax or a tensor of
        unknown shape, or the function returned no tensor expression.

    Examples
    --------
    >>> with builder.function("main", [x]):
    ...     y = builder.emit(gg.call_te(lambda a: te.compute(a.shape, lambda *i: a[i] * a[i]), x))
    """
    if not callable(function):
        raise ArgumentError(f"call_te was given {function!r}; it takes a function of te.Tensors")
    check_name(name, "a kernel")
    emitters = _emitters([*args, *keywords.values()])
    builder = emitters[0].builder if emitters else relax.BlockBuilder.current()
    if builder is None:
        raise ArgumentError(
            "call_te writes into a BlockBuilder: call it inside `with builder.function(...)`"
        )
    arguments = _Arguments(builder)
    positional, named = arguments.expression(args), arguments.expression(keywords)
    result = kernel_call(
        builder, function, positional, named, name or _name(function), of_user=True
    )
    return emitters[0].emit(result) if emitters else result


def check_name(name: Any, of: str) -> None:
    """Raise `ArgumentError` unless a name is None or text."""
    if name is not None and not (isinstance(name, str) and name):
        raise ArgumentError(f"name={name!r} is no name for {of}; give text")


def kernel_call(
    builder: relax.BlockBuilder,
    function: Callable[..., Any],
    args: Any,
    keywords: Any,
    name: str,
    of_user: bool = False,
) -> relax.Call:
    """The call of the kernel of a function applied to Relax values; the builder gets the kernel.

    One of a user's is known by its name, and static extents are int32 inside of it, because its
    function may build a te.scan.
    """
    traced = Traced(function, args, keywords, narrow=of_user)
    kernel = kernel_of(traced.parameters, traced.outputs)
    variable = builder.add_func(name_kernel(kernel, name) if of_user else kernel, name)
    return relax.call_tir(variable, relax.Tuple(traced.arguments), traced.types())


class KernelBuilder:
    """A BlockBuilder whose kernels remember the tensor expressions that they are made of.

    Lowerings of ops, TVM's too, are given it in the place of the one that it writes into.
    """

    def __init__(self, builder: relax.BlockBuilder):
        self._builder = builder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._builder, name)

    def call_te(self, function: Callable[..., Any], *args: Any, **keywords: Any) -> relax.Call:
        """A call of the kernel of a function, as BlockBuilder.call_te does."""
        name = keywords.pop("primfunc_name_hint", None) or _name(function)
        keywords.pop("primfunc_attrs", None)
        return kernel_call(self._builder, function, args, keywords, name)

    def emit_te(self, function: Callable[..., Any], *args: Any, **keywords: Any) -> relax.Var:
        """Emit a call of the kernel of a function, and return its variable."""
        return self._builder.emit(self.call_te(function, *args, **keywords))


def _emitters(values: Any) -> list[Any]:
    """The emitters of the `Tensor`s among some values; none if there is no `Tensor`."""
    if isinstance(values, Tensor):
        return [values.emitter]
    if isinstance(values, dict):
        values = list(values.values())
    return [e for v in values for e in _emitters(v)] if isinstance(values, list | tuple) else []


class _Arguments:
    """The arguments of a function of tensor expressions, in terms of a builder's variables."""

    def __init__(self, builder: relax.BlockBuilder):
        self._builder = builder
        self._emitted: dict[int, Any] = {}

    def expression(self, value: Any) -> Any:
        """A value in which Relax expressions stand for `Tensor`s, and variables for calls."""
        if isinstance(value, Tensor):
            return value.expr
        if isinstance(value, list | tuple):
            items = [self.expression(item) for item in value]
            return tuple(items) if isinstance(value, tuple) else items
        if isinstance(value, dict):
            return {name: self.expression(item) for name, item in value.items()}
        # NumPy's arrays have this method, and so do PyTorch's and TVM's.
        if hasattr(value, "__dlpack__"):
            raise ArgumentError(
                f"call_te was given an array, of type {type(value).__name__}, shape "
                f"{tuple(value.shape)} and dtype {value.dtype}: give relax.const(array, dtype) "
                "where the kernel is to read a tensor, array.tolist() where the function uses the "
                "numbers themselves"
            )
        is_call = isinstance(value, relax.Call | relax.TupleGetItem)
        return self._variable(value) if is_call and not tvm.ir.is_prim_expr(value) else value

    def _variable(self, value: Any) -> Any:
        """The variable of an expression, which is emitted once however often it is given."""
        if identity(value) not in self._emitted:
            self._emitted[identity(value)] = self._builder.emit(value)
        return self._emitted[identity(value)]


def _name(function: Any) -> str:
    name = getattr(function, "__name__", "")
    return name if name.isidentifier() else "kernel"
