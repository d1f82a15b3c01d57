"""A model as a function of JAX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from ..errors import InputError
from ..frontend.model import Model, hint
from ..train.inputs import by_name
from .differentiable import Differentiable
from .jax_calls import Calls


class JaxModel:
    """A model as a function, with gradients to any order; made by `graphgrad.as_jax`.

    It may be called inside of ``jax.jit``, ``jax.grad`` and ``jax.lax`` loops, by any threads.

    Attributes
    ----------
    params, state : dict of str to jax.Array
        Parameters that train by default, and running statistics, by ONNX name.
    """

    def __init__(self, model: Model, function: Differentiable):
        self._calls = Calls(function)
        self._inputs, self._outputs = list(model.inputs), list(model.outputs)
        self._is_seeded = function.is_seeded
        owned = {**model.params, **model.state}
        self._owned = {name: _kept(name, array) for name, array in owned.items()}
        self.params = {name: self._owned[name] for name in model.trainable()}
        self.state = {name: self._owned[name] for name in model.state}

    def __call__(
        self,
        params: Mapping[str, Any],
        *inputs: Any,
        state: Any = None,
        seed: Any = 0,
        **named: Any,
    ) -> Any:
        """The outputs, and in training form the new running statistics.

        Parameters
        ----------
        params : dict of arrays
        *inputs, **named : array
            In the order of the model's inputs, or by name.
        state : dict of arrays, optional
        seed : int or integer array
            Decides what dropouts drop; from 0, below 2³¹. Only with ``jax_enable_x64``.

        Raises
        ------
        InputError
            A name is unknown or missing, or an array does not fit the model.
        """
        names = self._inputs
        if len(inputs) > len(names) or named.keys() & set(names[: len(inputs)]):
            raise InputError(f"the model has inputs {names}; give each once")
        values = by_name({**dict(zip(names, inputs, strict=False)), **named}, names)
        owned = {**self._owned, **self._checked(params, "params"), **self._checked(state, "state")}
        arguments = [jnp.asarray(value) for value in (*values.values(), *owned.values())]
        if self._is_seeded:
            arguments.append(_seed(seed))
        results = self._calls.call()(*arguments)
        count = len(self._outputs)
        outputs = results[0] if count == 1 else tuple(results[:count])
        statistics = dict(zip(self.state, results[count:], strict=False))
        return (outputs, statistics) if statistics else outputs

    def _checked(self, arrays: Any, label: str) -> dict[str, Any]:
        """Arrays by name, after checking the names."""
        if arrays is None:
            return {}
        if not isinstance(arrays, Mapping):
            raise InputError(
                f"{label} is a {type(arrays).__name__}; give a dict of arrays by ONNX name"
            )
        for name in arrays:
            if name not in self._owned:
                raise InputError(f"{label}: the model has no {name!r}{hint(name, self._owned)}")
        return dict(arrays)


def _kept(name: str, array: Any) -> jax.Array:
    """A copy of an array as JAX's, in its dtype.

    Raises
    ------
    InputError
        JAX has no such dtype at the moment.
    """
    kept = jnp.array(array)
    if kept.dtype != array.dtype:
        raise InputError(
            f"{name!r} is {array.dtype}, which JAX makes {kept.dtype} of: "
            'jax.config.update("jax_enable_x64", True)'
        )
    return kept


def _seed(seed: Any) -> jax.Array:
    """A seed as dropouts take it, in the upper half of a word of 64 bits."""
    if not jax.config.jax_enable_x64:
        raise InputError(
            "the seed of dropouts is a word of 64 bits, which JAX has with "
            'jax.config.update("jax_enable_x64", True) only'
        )
    return jnp.asarray(seed, "int64") << 32
