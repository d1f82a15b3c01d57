"""PyTorch, eager or compiled: its recurrent layers, and loops in Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from loop_workloads import (
    GATES,
    LANGUAGE_MODEL,
    LAYER,
    LAYER_NORM_CELL,
    LAYERS,
    SELECTIVE_SCAN,
    Loop,
    arrays_of,
    read,
)
from torch import nn
from torch.nn import functional as F
from workload import LEARNING_RATE, MOMENTUM, Workload

INCLUDES = "forward, loss, backward; of language models fused SGD momentum"

Tensor = torch.Tensor

_ORDER = {"LSTM": [0, 2, 3, 1], "GRU": [1, 0, 2], "RNN": [0]}
"""Where each gate of torch's weights is in those of ONNX."""

_NAMES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


def prepare(workload: Workload, threads: int, compiled: bool = False) -> TrainStep | Gradients:
    """Return the step, which knows the gradients of its first call.

    Parameters
    ----------
    workload : Workload
    threads : int
    compiled : bool
        Whether `torch.compile` compiles the model, the layer, or the cell of a loop.
    """
    torch.set_num_threads(threads)
    kind = TrainStep if read(workload).kind == LANGUAGE_MODEL else Gradients
    return kind(workload, compiled)


class TrainStep:
    """The step of a language model."""

    def __init__(self, workload: Workload, compiled: bool):
        self._model = LanguageModel(read(workload))
        self._model.load(workload.weights())
        self._forward = torch.compile(self._model) if compiled else self._model
        parameters = self._model.parameters()
        self._optimizer = torch.optim.SGD(parameters, LEARNING_RATE, MOMENTUM, fused=True)
        self._tokens, self._labels = (torch.from_numpy(array) for array in workload.batch())

    def __call__(self) -> float:
        self._optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(self._forward(self._tokens), self._labels)
        loss.backward()
        self._optimizer.step()
        return loss.item()

    def gradients(self) -> dict[str, np.ndarray]:
        """Return the momentum of each weight, which is its gradient after one step."""
        state = self._optimizer.state
        momentum = {n: state[p]["momentum_buffer"] for n, p in self._model.named_parameters()}
        return self._model.as_onnx({name: array.numpy() for name, array in momentum.items()})


class LanguageModel(nn.Module):
    """An embedding, recurrent layers, and a projection to scores of tokens."""

    def __init__(self, loop: Loop):
        super().__init__()
        self._loop = loop
        self.embedding = nn.Embedding(loop.vocabulary, loop.width)
        self.layers = layers(loop, LAYERS)
        self.projection = nn.Linear(loop.directions * loop.width, loop.vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the scores, a row for each token."""
        states, _ = self.layers(self.embedding(tokens))
        return self.projection(states).flatten(0, 1)

    def load(self, weights: Mapping[str, np.ndarray]) -> None:
        """Take the weights of a file."""
        named = {
            "embedding.weight": weights["embedding"],
            "projection.weight": weights["projection"].T,
            "projection.bias": weights["bias"],
        }
        for number in range(LAYERS):
            parts = (weights[f"layer{number}.{part}"] for part in "wrb")
            for name, array in layer_from_onnx(self._loop, *parts).items():
                named["layers." + name.format(number)] = array
        self.load_state_dict({n: torch.from_numpy(a.copy()) for n, a in named.items()})

    def as_onnx(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return arrays of the parameters by the names, and in the order, of the file."""
        found = {
            "embedding": arrays["embedding.weight"],
            "projection": arrays["projection.weight"].T,
            "bias": arrays["projection.bias"],
        }
        for number in range(LAYERS):
            parts = layer_as_onnx(
                self._loop, lambda name, number=number: arrays["layers." + name.format(number)]
            )
            found |= {f"layer{number}.{part}": array for part, array in parts.items()}
        return found


def layers(loop: Loop, count: int) -> nn.RNNBase:
    """Return layers of torch, one on the other."""
    kind = getattr(nn, loop.operator)
    return kind(loop.width, loop.width, count, bidirectional=loop.directions == 2)


def layer_from_onnx(
    loop: Loop, w: np.ndarray, r: np.ndarray, b: np.ndarray
) -> dict[str, np.ndarray]:
    """Return the weights of a layer by torch's names, in which its number is left open."""
    named = {}
    for direction in range(loop.directions):
        parts = (w[direction], r[direction], *np.split(b[direction], 2))
        for name, array in zip(_NAMES, parts, strict=True):
            gates = np.split(array, GATES[loop.operator])
            ordered = np.concatenate([gates[place] for place in _ORDER[loop.operator]])
            named[f"{name}_l{{}}{'_reverse' * direction}"] = ordered
    return named


def layer_as_onnx(loop: Loop, named: Callable[[str], np.ndarray]) -> dict[str, np.ndarray]:
    """Return w, r and b of a layer, given torch's arrays by the names of `layer_from_onnx`."""
    order = np.argsort(_ORDER[loop.operator])

    def both(name: str) -> np.ndarray:
        arrays = []
        for direction in range(loop.directions):
            array = named(f"{name}_l{{}}{'_reverse' * direction}")
            gates = np.split(array, GATES[loop.operator])
            arrays.append(np.concatenate([gates[place] for place in order]))
        return np.stack(arrays)

    w, r, *biases = map(both, _NAMES)
    return {"w": w, "r": r, "b": np.concatenate(biases, 1)}


class Gradients:
    """A function's value and its gradients by all arguments."""

    def __init__(self, workload: Workload, compiled: bool):
        self._loop, arrays = read(workload), arrays_of(workload)
        self._is_layer = self._loop.kind == LAYER
        if self._is_layer:
            layer = layers(self._loop, 1)
            weights = layer_from_onnx(self._loop, *(arrays[name] for name in "wrb"))
            state = {n.format(0): torch.from_numpy(a.copy()) for n, a in weights.items()}
            layer.load_state_dict(state)
            run = torch.compile(layer) if compiled else layer
            self._compute = lambda x, *weights: run(x)[0]
            x = torch.from_numpy(arrays["x"]).requires_grad_()
            self._arguments = {"x": x, **dict(layer.named_parameters())}
        else:
            self._compute = _FUNCTIONS[self._loop.kind](compiled)
            self._arguments = {n: torch.from_numpy(a).requires_grad_() for n, a in arrays.items()}

    def __call__(self) -> float:
        for argument in self._arguments.values():
            argument.grad = None
        loss = self._compute(*self._arguments.values()).square().mean()
        loss.backward()
        return loss.item()

    def gradients(self) -> dict[str, np.ndarray]:
        """Return the gradients of the last call."""
        found = {name: argument.grad.numpy() for name, argument in self._arguments.items()}
        if not self._is_layer:
            return found
        return {"x": found["x"]} | layer_as_onnx(self._loop, lambda name: found[name.format(0)])


def layer_norm_lstm(compiled: bool) -> Callable[..., Tensor]:
    """Return the states of an LSTM whose products and cell are normalized."""

    def cell(
        from_x: Tensor, h: Tensor, c: Tensor, r: Tensor, h_gain: Tensor, c_gain: Tensor,
        c_bias: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        from_h = F.layer_norm(h @ r, h_gain.shape, h_gain)
        i, f, g, o = (from_x + from_h).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * F.layer_norm(c, c_gain.shape, c_gain, c_bias).tanh(), c

    step = torch.compile(cell) if compiled else cell

    def run(
        x: Tensor, w: Tensor, r: Tensor, x_gain: Tensor, h_gain: Tensor, c_gain: Tensor,
        bias: Tensor, c_bias: Tensor,
    ) -> Tensor:  # fmt: skip
        h = c = x.new_zeros(x.shape[1:])
        states = []
        for from_x in F.layer_norm(x @ w, x_gain.shape, x_gain, bias).unbind():
            h, c = step(from_x, h, c, r, h_gain, c_gain, c_bias)
            states.append(h)
        return torch.stack(states)

    return run


def selective_scan(compiled: bool) -> Callable[..., Tensor]:
    """Return the scan of Mamba, as its authors' reference has it, time first."""

    def step(decay: Tensor, input: Tensor, c: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = decay * h + input
        return h, (h @ c.unsqueeze(-1)).squeeze(-1)

    one = torch.compile(step) if compiled else step

    def run(u: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
        decays = (delta.unsqueeze(-1) * a).exp()
        inputs = (delta * u).unsqueeze(-1) * b.unsqueeze(2)
        h, results = u.new_zeros(decays.shape[1:]), []
        for decay, input, weights in zip(decays.unbind(), inputs.unbind(), c.unbind(), strict=True):
            h, y = one(decay, input, weights, h)
            results.append(y)
        return torch.stack(results) + u * d

    return run


_FUNCTIONS = {LAYER_NORM_CELL: layer_norm_lstm, SELECTIVE_SCAN: selective_scan}
