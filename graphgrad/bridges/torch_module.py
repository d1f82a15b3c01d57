"""A model as a module of PyTorch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from ..errors import InputError
from ..frontend.model import Model
from ..ir.tensor import is_float
from ..train.inputs import by_name
from .derivative import ITSELF, to_text
from .differentiable import Differentiable, differentiable
from .torch_ops import call, owned_tensor

_ITSELF = to_text(ITSELF)


class TorchModel(nn.Module):
    """A model as a module, with gradients to any order; made by `graphgrad.as_torch`.

    Like any module it begins in training form, and ``eval()`` switches batch norms and dropouts to
    inference form. It can be copied, pickled, and compiled by ``torch.compile``.

    Attributes
    ----------
    onnx_names : dict of str to str
        The ONNX name of each entry of ``state_dict()``: the same, but for names that PyTorch
        refuses.
    """

    def __init__(self, model: Model, options: Mapping[str, Any]):
        super().__init__()
        arrays = {**model.params, **model.state}
        self.onnx_names = dict(zip(_keys(arrays, self), arrays, strict=True))
        # Without values: those that count are the module's.
        self._model, self._options = model.without_values(), dict(options)
        self._forms: dict[bool, Differentiable] = {}
        self._make_forms()
        trainable = set(model.trainable())
        for key, name in self.onnx_names.items():
            *path, attribute = key.split(".")
            owner = _submodule(self, path)
            tensor = owned_tensor(arrays[name])
            if name in model.params and is_float(str(arrays[name].dtype)):
                owner.register_parameter(attribute, nn.Parameter(tensor, name in trainable))
            else:
                owner.register_buffer(attribute, tensor)

    def forward(self, *inputs: torch.Tensor, **named: torch.Tensor) -> Any:
        """The outputs of the model.

        Parameters
        ----------
        *inputs, **named : Tensor
            In the order of the model's inputs, or by name; on the processor, of its dtypes.

        Returns
        -------
        Tensor or tuple of Tensor
            A tuple if the model has several outputs, in its order.

        Raises
        ------
        InputError
            A tensor is missing or unknown, is on another device, or has another dtype or shape than
            the model's.
        """
        number, text, arguments = self.call_arguments(*inputs, **named)
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            text = self._keeping(arguments)
        results = call(number, text, arguments)
        count = len(self._model.outputs)
        if self._forms[self.training].updates:
            # Behind them may be what is kept for the gradient.
            for key, value in zip(self._statistics, results[count:], strict=False):
                _value(self, key).copy_(value.detach())
        return results[0] if count == 1 else tuple(results[:count])

    def call_arguments(
        self, *inputs: torch.Tensor, **named: torch.Tensor
    ) -> tuple[int, str, list[torch.Tensor]]:
        """The arguments of ``torch.ops.graphgrad.call`` for a call, as ``opcheck`` takes them."""
        form = self._forms[self.training]
        arguments = self._in_order(inputs, named)
        for key in self.onnx_names:
            value = _value(self, key)
            # A copy of a statistic: it is overwritten before a backward pass reads it again.
            arguments.append(value.clone() if key in self._statistics else value)
        if form.is_seeded:
            arguments.append(torch.randint(1 << 31, ()) << 32)
        return form.number, _ITSELF, arguments

    def _keeping(self, arguments: list[torch.Tensor]) -> str:
        """What is called so that the gradient of all that needs one is computed from what is kept.

        A compiler sees the function itself, whose shapes may be symbols.
        """
        form = self._forms[self.training]
        wrt = tuple(n for n, argument in enumerate(arguments) if argument.requires_grad)
        derivative = ((wrt, form.float_outputs),)
        if not wrt or not form.float_outputs or any(a.device.type != "cpu" for a in arguments):
            return _ITSELF
        form.check(arguments)
        parts = form.split(derivative, form.input_shapes(arguments))
        return _ITSELF if parts is None else to_text(derivative, "forward")

    def _in_order(
        self, inputs: tuple[torch.Tensor, ...], named: dict[str, torch.Tensor]
    ) -> list[torch.Tensor]:
        """The inputs in the model's order, checked to be tensors."""
        names = self._model.inputs
        if len(inputs) > len(names) or named.keys() & set(names[: len(inputs)]):
            raise InputError(
                f"the model has inputs {names}; {len(inputs)} were given in order, and by name "
                f"{list(named)}: give each once"
            )
        values = by_name({**dict(zip(names, inputs, strict=False)), **named}, names)
        for name, value in values.items():
            if not isinstance(value, torch.Tensor):
                raise InputError(
                    f"input {name!r} is a {type(value).__name__}; a module takes tensors of "
                    "PyTorch: convert it with torch.as_tensor"
                )
        return list(values.values())

    def _make_forms(self) -> None:
        """Build training form and inference form, and know their statistics."""
        self._forms = {
            training: differentiable(self._model, training, **self._options)
            for training in (True, False)
        }
        keys = list(self.onnx_names)
        self._statistics = keys[len(self._model.params) :]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_forms": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._make_forms()


def _keys(names: Iterable[str], module: nn.Module) -> list[str]:
    """Keys of a ``state_dict`` for names; those that PyTorch refuses get underscores.

    A name's dots make submodules. Refused are names with nothing between two dots, names that
    begin like an attribute of modules, and names that are a submodule of others.
    """
    names = list(names)
    submodules = {name[:end] for name in names for end in range(len(name)) if name[end] == "."}
    keys: list[str] = []
    for name in names:
        parts = name.split(".")
        is_refused = name in submodules or any(not part or hasattr(module, part) for part in parts)
        key = name.replace(".", "_") if is_refused else name
        while key in keys or (is_refused and (key in names or hasattr(module, key))):
            key += "_"
        keys.append(key)
    return keys


def _submodule(module: nn.Module, path: Iterable[str]) -> nn.Module:
    """The submodule at a path, which is made where there is none."""
    for name in path:
        if name not in module._modules:
            module.add_module(name, nn.Module())
        module = module._modules[name]
    return module


def _value(module: Any, key: str) -> torch.Tensor:
    """A parameter or buffer by key; `torch.func.functional_call` may have put a tensor there."""
    for name in key.split("."):
        module = getattr(module, name)
    return module
