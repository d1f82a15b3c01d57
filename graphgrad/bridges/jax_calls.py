"""Calls of models and of their derivatives in programs of JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import jax
import jax.numpy as jnp
import jax_tvm_ffi
import numpy as np
from jax.custom_derivatives import SymbolicZero

from ..errors import InputError
from ..train.on_device import Shapes
from .derivative import ITSELF, Derivative, Part
from .differentiable import Differentiable
from .kernels import Kernel, Signature
from .residuals import Split

Call = Callable[..., list[Any]]
"""From arrays in a row to arrays in a row."""

_TARGETS = count()


class Calls:
    """A model's function and its derivatives, as functions of JAX.

    Parameters
    ----------
    function : Differentiable
    """

    def __init__(self, function: Differentiable):
        self._function = function
        self._compiled: dict[tuple[Derivative, Part, Shapes], Call] = {}
        self._calls: dict[tuple[Derivative, Part], Call] = {}

    def call(self, derivative: Derivative = ITSELF, part: Part = "whole") -> Call:
        """A derivative, or a part of one, as a function that JAX can differentiate again.

        A derivative's is one of this object's functions, too, so that there are all orders.
        """
        key = derivative, part
        if key not in self._calls:
            self._calls[key] = self._differentiable(*key)
        return self._calls[key]

    def _differentiable(self, derivative: Derivative, part: Part) -> Call:
        @jax.custom_vjp
        def run(*arguments: Any) -> list[Any]:
            return self._run(derivative, part, arguments)

        def forward(*arguments: Any) -> tuple[list[Any], Any]:
            values = [argument.value for argument in arguments]
            wrt = tuple(n for n, a in enumerate(arguments) if a.perturbed and _is_float(a.value))
            # Keys are no arrays, and so are known while a program is traced.
            marks = dict.fromkeys(wrt)
            parts = self._foreseen(values, wrt) if (derivative, part) == (ITSELF, "whole") else None
            if parts is None:
                return run(*values), (values, marks, None)
            step = wrt, self._function.float_outputs
            results = self.call((step,), "forward")(*values)
            kept = [results[position] for position in parts.kept]
            return results[: parts.count], (values, marks, kept)

        def backward(saved: Any, cotangents: Sequence[Any]) -> tuple[Any, ...]:
            values, marks, kept = saved
            steps, count, results_count = self._differentiated(derivative, part, values)
            wrt = tuple(position for position in marks if position < count)
            present = {
                position: cotangent
                for position, cotangent in enumerate(cotangents[:results_count])
                if not isinstance(cotangent, SymbolicZero) and _is_float(cotangent)
            }
            if not wrt or not present:
                return (None,) * len(values)
            after = (*steps, (wrt, tuple(present)))
            given = [*values[:count], *present.values()]
            if kept is not None and tuple(present) == self._function.float_outputs:
                results = self.call(after, "backward")(*given, *kept)
            else:
                results = self.call(after)(*given)
            by_position = dict(zip(wrt, results, strict=True))
            return tuple(by_position.get(position) for position in range(len(values)))

        run.defvjp(forward, backward, symbolic_zeros=True)
        return run

    def _foreseen(self, values: Sequence[Any], wrt: tuple[int, ...]) -> Split | None:
        """The parts of a gradient by some arguments, for cotangents of all outputs."""
        floats = self._function.float_outputs
        if not wrt or not floats:
            return None
        self._function.check(values)
        return self._function.split(((wrt, floats),), self._function.input_shapes(values))

    def _differentiated(
        self, derivative: Derivative, part: Part, values: Sequence[Any]
    ) -> tuple[Derivative, int, int | None]:
        """What a part computes without what is kept: its numbers of arguments and of results.

        None stands for all results. What is kept has no cotangents of its own: it is a function of
        the arguments, and the gradient is that of all.
        """
        if part == "whole":
            return derivative, len(values), None
        parts = self._function.split(derivative, self._function.input_shapes(values))
        assert parts is not None
        if part == "forward":
            return derivative[:-1], len(values), parts.count
        return derivative, len(values) - len(parts.kept), None

    def _run(self, derivative: Derivative, part: Part, arguments: Sequence[Any]) -> list[Any]:
        """The call of a compiled function, which is made when its shapes are first traced."""
        function = self._function
        if derivative == ITSELF:
            function.check(arguments)
        key = derivative, part, function.input_shapes(arguments)
        if key not in self._compiled:
            self._compiled[key] = self._compile(*key)
        return self._compiled[key](*arguments)

    def _compile(self, derivative: Derivative, part: Part, shapes: Shapes) -> Call:
        compiled = self._function.on_host(derivative, part, shapes)
        name = f"graphgrad_{next(_TARGETS)}"
        jax_tvm_ffi.register_ffi_target(name, compiled.function, pass_owned_tensor=True)
        results = [jax.ShapeDtypeStruct(shape, _dtype(dtype)) for shape, dtype in compiled.results]
        # The memory that the function computes in is XLA's: each call has its own.
        workspace = jax.ShapeDtypeStruct((compiled.workspace,), np.uint8)
        call = jax.ffi.ffi_call(name, [*results, workspace])
        return lambda *arguments: call(*arguments, *compiled.constants)[: len(results)]


def kernel_call(kernel: Kernel, count: int, target: Any) -> Callable[..., Any]:
    """A kernel of `count` arguments as a function; see `graphgrad.jax_op`."""
    forms: dict[Signature, Calls] = {}

    def run(*arguments: Any) -> Any:
        if len(arguments) != count:
            raise InputError(
                f"kernel {kernel.name!r} takes {kernel.arguments}; {len(arguments)} were given"
            )
        arrays = [jnp.asarray(argument) for argument in arguments]
        signature = tuple((tuple(array.shape), str(array.dtype)) for array in arrays)
        key = () if kernel.is_script else signature  # a PrimFunc says shapes and dtypes itself
        if key not in forms:
            forms[key] = Calls(kernel.form(signature, target))
        results = forms[key].call()(*arrays)
        return results[0] if kernel.outputs == 1 else tuple(results)

    return run


def _is_float(value: Any) -> bool:
    return bool(jnp.issubdtype(value.dtype, jnp.floating))


def _dtype(name: str) -> Any:
    return jnp.dtype(name)
