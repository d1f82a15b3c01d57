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
from .derivative import ITSELF, Derivative
from .differentiable import Differentiable
from .kernels import Kernel, Signature

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
        self._compiled: dict[tuple[Derivative, Shapes], Call] = {}
        self._calls: dict[Derivative, Call] = {}

    def call(self, derivative: Derivative = ITSELF) -> Call:
        """A derivative as a function that JAX can differentiate again.

        A derivative's is one of this object's functions, too, so that there are all orders.
        """
        if derivative not in self._calls:
            self._calls[derivative] = self._differentiable(derivative)
        return self._calls[derivative]

    def _differentiable(self, derivative: Derivative) -> Call:
        @jax.custom_vjp
        def run(*arguments: Any) -> list[Any]:
            return self._run(derivative, arguments)

        def forward(*arguments: Any) -> tuple[list[Any], Any]:
            values = [argument.value for argument in arguments]
            wrt = [n for n, a in enumerate(arguments) if a.perturbed and _is_float(a.value)]
            # Keys are no arrays, and so are known while a program is traced.
            return run(*values), (values, dict.fromkeys(wrt))

        def backward(kept: Any, cotangents: Sequence[Any]) -> tuple[Any, ...]:
            values, wrt = kept
            present = {
                position: cotangent
                for position, cotangent in enumerate(cotangents)
                if not isinstance(cotangent, SymbolicZero) and _is_float(cotangent)
            }
            if not wrt or not present:
                return (None,) * len(values)
            step = tuple(wrt), tuple(present)
            results = self.call((*derivative, step))(*values, *present.values())
            by_position = dict(zip(wrt, results, strict=True))
            return tuple(by_position.get(position) for position in range(len(values)))

        run.defvjp(forward, backward, symbolic_zeros=True)
        return run

    def _run(self, derivative: Derivative, arguments: Sequence[Any]) -> list[Any]:
        """The call of a compiled function, which is made when its shapes are first traced."""
        function = self._function
        if derivative == ITSELF:
            function.check(arguments)
        shapes = function.input_shapes(arguments)
        key = derivative, shapes
        if key not in self._compiled:
            self._compiled[key] = self._compile(*key)
        return self._compiled[key](*arguments)

    def _compile(self, derivative: Derivative, shapes: Shapes) -> Call:
        compiled = self._function.on_host(derivative, shapes)
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
