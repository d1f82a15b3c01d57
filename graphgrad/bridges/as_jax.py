"""`as_jax` and `jax_op`: a model, and a kernel, as functions of JAX."""

from __future__ import annotations

from typing import Any

from ..frontend.model import Model
from ..precision.choice import Precision
from ..required import require
from ..train.inputs import input_types
from .kernels import Kernel, check_outputs


def as_jax(
    model: Model,
    *,
    training: bool | None = None,
    target: Any = "llvm",
    rules: str = "auto",
    winograd: bool = True,
    precision: str | Precision = "float32",
) -> Any:
    """A model as a function of JAX, with gradients to any order.

    Parameters
    ----------
    model : Model
    training : bool, optional
        The form of batch norms and dropouts; by default the file's.
    target : str, dict or Target
        A processor.
    rules : "auto" or "derived"
        As of `graphgrad.vjp`.
    winograd : bool
        As of `graphgrad.compile`.
    precision : str or Precision
        As of `train_step`.

    Returns
    -------
    JaxModel
        ``f(params, *inputs, state=None, seed=0)`` returns the outputs: an array, or a tuple of
        several; in training form of a model with running statistics ``(outputs, new state)``.
        `params` and `state` are dicts of arrays by ONNX name; what they leave out has the model's
        value. ``f.params`` and ``f.state`` are the model's: those that train, and the statistics.

    Raises
    ------
    ArgumentError
        JAX or jax-tvm-ffi is missing or too old, it is no `Model`, or a value is unknown.
    MissingGradientError
        Some ops have no gradient; the error lists all of them.
    TargetError
        There is no such target.

    Examples
    --------
    >>> f = gg.as_jax(gg.from_onnx("model.onnx"))
    >>> gradients = jax.jit(jax.grad(lambda params: f(params, x).sum()))(f.params)
    """
    _require()
    input_types(model)  # raises if it is no model
    from .differentiable import differentiable  # noqa: PLC0415
    from .jax_model import JaxModel  # noqa: PLC0415

    return JaxModel(model, differentiable(model, training, target, rules, winograd, precision))


def jax_op(kernel: Any, *, outputs: int = 1, target: Any = "llvm") -> Any:
    """A kernel as a function of JAX, with gradients to any order that are derived from it.

    Parameters
    ----------
    kernel : callable or PrimFunc
        As of `torch_op`.
    outputs : int
        How many results there are.
    target : str, dict or Target
        A processor.

    Returns
    -------
    callable
        Takes arrays, and returns one, or a tuple of `outputs`.

    Raises
    ------
    ArgumentError
        JAX or jax-tvm-ffi is missing or too old, or an argument is none of these.
    MissingGradientError
        No gradient can be derived; raised by calls.

    Examples
    --------
    >>> square = gg.jax_op(lambda x: te.compute(x.shape, lambda i: x[i] * x[i]))
    """
    _require()
    from .jax_calls import kernel_call  # noqa: PLC0415

    name = getattr(kernel, "__name__", "kernel")
    checked = Kernel(kernel, name if name.isidentifier() else "kernel", check_outputs(outputs))
    return kernel_call(checked, len(checked.arguments), target)


def _require() -> None:
    for package in ("jax", "jax_tvm_ffi"):
        require(package)
