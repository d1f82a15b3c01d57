"""`as_torch` and `torch_op`: a model as a module of PyTorch, a kernel as an op of it."""

from __future__ import annotations

from typing import Any

from ..errors import ArgumentError
from ..frontend.model import Model
from ..precision.choice import Precision
from ..required import require
from ..train.inputs import input_types
from .kernels import Kernel, check_outputs


def as_torch(
    model: Model,
    *,
    target: Any = "llvm",
    rules: str = "auto",
    winograd: bool = True,
    precision: str | Precision = "float32",
) -> Any:
    """A model as a ``torch.nn.Module``, with gradients to any order.

    Parameters
    ----------
    model : Model
        Its values are copied.
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
    torch.nn.Module
        ``module(*inputs)`` returns the outputs: a tensor, or a tuple of several. Parameters and
        statistics have their ONNX names, whose dots make submodules; ``onnx_names`` says where
        PyTorch refuses one. What trains by default requires a gradient. ``train()`` and ``eval()``
        choose the form of batch norms and dropouts; a call in training form updates statistics, and
        draws the seed of dropouts from PyTorch's generator.

    Raises
    ------
    ArgumentError
        PyTorch is missing or too old, it is no `Model`, or a value is unknown.
    MissingGradientError
        Some ops have no gradient; the error lists all of them.
    TargetError
        There is no such target.

    Examples
    --------
    >>> module = gg.as_torch(gg.from_onnx("model.onnx"))
    >>> optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    """
    require("torch")
    input_types(model)  # raises if it is no model
    from .torch_module import TorchModel  # noqa: PLC0415

    options = {"target": target, "rules": rules, "winograd": winograd, "precision": precision}
    return TorchModel(model, options)


def torch_op(name: str, kernel: Any, *, outputs: int = 1, target: Any = "llvm") -> Any:
    """A kernel as an op of PyTorch, with gradients to any order that are derived from it.

    Parameters
    ----------
    name : str
        ``"namespace::name"``; the op is ``torch.ops.namespace.name`` too.
    kernel : callable or PrimFunc
        A function of te.Tensors that returns one, or `outputs` of them: it is called for each
        combination of shapes and dtypes, and parameters that have a default are none of the op's.
        Or a PrimFunc, such as TVMScript's, of tensors alone, of which the last are the results.
    outputs : int
        How many results there are.
    target : str, dict or Target
        A processor.

    Returns
    -------
    torch.library.CustomOpDef
        It is called with the tensors, and returns a tensor, or a tuple of `outputs`.

    Raises
    ------
    ArgumentError
        PyTorch is missing or too old, or an argument is none of these.
    MissingGradientError
        No gradient can be derived. Of a function it is raised by calls, as are its own errors.

    Examples
    --------
    >>> spline = gg.torch_op("mine::spline", lambda x: te.compute(x.shape, lambda i: x[i] * x[i]))
    """
    require("torch")
    namespace, separator, short = name.partition("::") if isinstance(name, str) else ("", "", "")
    if not (separator and namespace.isidentifier() and short.isidentifier()):
        raise ArgumentError(
            f"name={name!r} is none for an op; give one such as 'mine::{short or 'op'}'"
        )
    from .torch_kernels import define  # noqa: PLC0415

    return define(name, Kernel(kernel, short, check_outputs(outputs)), target)
