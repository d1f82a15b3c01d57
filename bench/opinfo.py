"""torch's own samples of its operators, through ONNX: do values and gradients follow torch?

    python bench/opinfo.py [--match REGEX] [--samples N] [--jobs N] [--json] [--show STATUS]

Each sample of each differentiable operator in torch's test-suite ("OpInfo") is traced, exported to
ONNX, imported, promoted to float64 (the exporter casts float64 scalars to float32), and run. Its
outputs and gradients are compared with torch's; a gradient that torch leaves out, with differences.
Four samples of each of about 540 operators take about ten minutes on two cores.

agrees        every sample that was exported agrees
not exported  torch's exporter has no translation of the operator, or what is exported computes no
              longer what torch does (onnxruntime, or the standard's reference, says so too)
missing       the import, the lowering or a gradient is missing
wrong         a value or a gradient disagrees
"""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
import warnings
from functools import cache, partial
from itertools import chain, islice
from typing import Any, NoReturn

import numpy as np
import onnx
import torch
import tvm
from judges import WRONG, Verdict, add_arguments, first_line, judge_all, tell
from onnx.reference import ReferenceEvaluator
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree
from tvm import relax

import graphgrad as gg
from graphgrad.check import flat
from graphgrad.check.promote import promote_to_float64
from graphgrad.frontend.mode import specialize
from graphgrad.ir.arrays import to_tensor
from graphgrad.ir.tensor import type_shape

AGREES, NOT_EXPORTED, MISSING = "agrees", "not exported", "missing"
STATUSES = (AGREES, NOT_EXPORTED, MISSING, WRONG)
OPSET = 18

_CHANGED = {
    "nn.functional.pairwise_distance": "the exporter adds 1e-6 to the order of the norm",
}
"""Operators that the exporter changes by too little for values to tell, but not gradients."""

_ERROR = b"error: "
"""Begins what the exporting process says in the place of a model."""


@cache
def operators() -> dict[str, Any]:
    """Return torch's differentiable operators by name."""
    return {
        f"{info.name} {info.variant_test_name}".strip(): info
        for info in op_db
        if info.supports_autograd and torch.float64 in info.dtypes
    }


class Traced(torch.nn.Module):
    """One call of an operator, as a module of its float tensors alone."""

    def __init__(self, info: Any, sample: Any):
        super().__init__()
        self._function = info.op
        leaves, self._tree = _pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        self._leaves = [v.detach() if isinstance(v, torch.Tensor) else v for v in leaves]
        self._positions = [i for i, v in enumerate(leaves) if _is_float(v)]
        self.inputs = [self._leaves[i].clone().requires_grad_() for i in self._positions]

    def forward(self, *floats: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the float outputs."""
        leaves = list(self._leaves)
        for position, value in zip(self._positions, floats, strict=True):
            leaves[position] = value
        first, args, kwargs = _pytree.tree_unflatten(leaves, self._tree)
        result = self._function(first, *args, **kwargs)
        return tuple(value for value in _pytree.tree_leaves(result) if _is_float(value))


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype == torch.float64


def judge(name: str, samples: int) -> Verdict:
    """Compare the samples of one operator; the worst outcome counts."""
    torch.set_num_threads(1)  # a process that has started torch's threads cannot be forked
    torch.manual_seed(0)
    info = operators()[name]
    found: dict[str, str] = {}
    drawn = info.sample_inputs("cpu", torch.float64, requires_grad=True)
    for index, sample in enumerate(islice(drawn, samples)):
        status, reason = _outcome(Traced(info, sample))
        if status == WRONG and info.name in _CHANGED:
            status, reason = NOT_EXPORTED, _CHANGED[info.name]
        found.setdefault(status, f"sample {index}: {reason}" if reason else "")
    for status in (WRONG, MISSING, AGREES):
        if status in found:
            return Verdict(name, info.name, status, found[status])
    return Verdict(name, info.name, NOT_EXPORTED, found.get(NOT_EXPORTED, "no sample"))


def _outcome(module: Traced) -> tuple[str, str]:
    try:
        expected = module(*module.inputs)
        proto = _exported(module)
    except Exception as error:
        return NOT_EXPORTED, first_line(error)
    differentiable = [value for value in expected if value.requires_grad]
    if not differentiable or not proto.graph.input:
        return NOT_EXPORTED, "nothing to differentiate"
    try:
        status, reason = _judged(proto, module, expected)
    except gg.MissingGradientError as error:
        return MISSING, first_line(error, 1)
    except gg.GraphGradError as error:
        status, reason = MISSING, first_line(error)
    if status != AGREES and not _export_is_faithful(proto, module, expected):
        return NOT_EXPORTED, "the exported file computes something else"
    return status, reason


def _exported(module: Traced) -> onnx.ModelProto:
    """Export in a process of its own: the exporter writes to the terminal, and can die."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        _export_and_exit(module, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        written = pipe.read()
    os.waitpid(child, 0)
    if not written:
        raise RuntimeError("torch's exporter ended the process")
    if written.startswith(_ERROR):
        raise RuntimeError(written.removeprefix(_ERROR).decode())
    return onnx.load_from_string(written)


def _export_and_exit(module: Traced, writer: int) -> NoReturn:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    try:
        written = _export(module)
    except Exception as error:
        written = _ERROR + first_line(error).encode()
    with os.fdopen(writer, "wb") as pipe:
        pipe.write(written)
    os._exit(0)


def _export(module: Traced) -> bytes:
    buffer = io.BytesIO()
    torch.onnx.export(
        module,
        tuple(value.detach() for value in module.inputs),
        buffer,
        dynamo=False,
        opset_version=OPSET,
        do_constant_folding=False,
        input_names=[f"x{i}" for i in range(len(module.inputs))],
    )
    return buffer.getvalue()


def _arrays(proto: onnx.ModelProto, module: Traced) -> dict[str, np.ndarray]:
    """Return the inputs that the exporter kept, by name."""
    kept = [value.name for value in proto.graph.input]
    return {name: module.inputs[int(name[1:])].detach().numpy() for name in kept}


def _cotangents(expected: tuple[torch.Tensor, ...]) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [generator.uniform(-1, 1, tuple(value.shape)) for value in expected]


def _judged(
    proto: onnx.ModelProto, module: Traced, expected: tuple[torch.Tensor, ...]
) -> tuple[str, str]:
    """Compare our outputs and gradients with torch's."""
    model = gg.from_onnx(proto)
    mod, obstacles = promote_to_float64(specialize(model, training=False))
    if obstacles:
        return MISSING, f"no float64: {obstacles[0]}"
    mod = gg.vjp(mod, wrt=model.inputs)
    shapes = [tuple(type_shape(ct.ty)) for ct in mod["main_vjp"].params[-len(expected) :]]
    if not all(isinstance(extent, int) for extent in chain.from_iterable(shapes)):
        return MISSING, "the shape of the output depends on the data"
    if shapes != [tuple(value.shape) for value in expected]:
        return WRONG, f"the outputs have the shapes {shapes}"
    machine = relax.VirtualMachine(gg.compile(mod), tvm.cpu())
    inputs = _arrays(proto, module)
    arguments = [inputs[name] for name in model.inputs]
    for array in [*model.params.values(), *model.state.values()]:
        arguments.append(array.astype("float64") if array.dtype.kind == "f" else array)
    outputs, gradients = machine["main_vjp"](*map(to_tensor, [*arguments, *_cotangents(expected)]))
    named = dict(zip(model.inputs, flat(gradients), strict=True))
    difference = _difference(flat(outputs), named, module, expected)
    return (WRONG, difference) if difference else (AGREES, "")


def _difference(
    outputs: list[np.ndarray],
    gradients: dict[str, np.ndarray],
    module: Traced,
    expected: tuple[torch.Tensor, ...],
) -> str:
    for index, (value, theirs) in enumerate(zip(outputs, expected, strict=True)):
        if not _close(value, theirs.detach().numpy()):
            return f"output {index} differs"
    reference = _torch_gradients(module, expected)
    for name, gradient in gradients.items():
        theirs = reference[int(name[1:])]
        if not _close(gradient, theirs) and not _is_slope(gradient, int(name[1:]), module):
            return f"gradient of {name} differs by up to {np.abs(gradient - theirs).max():.3g}"
    return ""


def _torch_gradients(module: Traced, expected: tuple[torch.Tensor, ...]) -> list[np.ndarray]:
    pairs = [
        (value, torch.tensor(ct))
        for value, ct in zip(expected, _cotangents(expected), strict=True)
        if value.requires_grad
    ]
    values, cotangents = zip(*pairs, strict=True)
    gradients = torch.autograd.grad(
        values, module.inputs, cotangents, allow_unused=True, materialize_grads=True
    )
    return [gradient.detach().numpy() for gradient in gradients]


def _is_slope(gradient: np.ndarray, position: int, module: Traced) -> bool:
    """Whether central differences of what torch computes have a gradient, which torch has not.

    It has none for some outputs, such as the statistics that native_layer_norm returns.
    """
    generator = np.random.default_rng(1)
    slopes = []
    for _ in range(4):
        direction = generator.uniform(-1, 1, gradient.shape)
        moved = [_weighted(module, position, step * direction) for step in (1e-5, -1e-5)]
        slopes.append(((moved[0] - moved[1]) / 2e-5, float(np.sum(gradient * direction))))
    found, given = np.array(slopes).T
    return np.allclose(found, given, rtol=1e-6, atol=1e-7 * np.abs(found).max())


def _weighted(module: Traced, position: int, step: np.ndarray) -> float:
    with torch.no_grad():
        inputs = list(module.inputs)
        inputs[position] = inputs[position] + torch.from_numpy(np.asarray(step))
        outputs = module(*inputs)
    pairs = zip(outputs, _cotangents(outputs), strict=True)
    return float(sum(np.sum(value.numpy() * ct) for value, ct in pairs))


def _close(ours: np.ndarray, theirs: np.ndarray) -> bool:
    scale = float(np.abs(theirs[np.isfinite(theirs)]).max(initial=0.0))
    return ours.shape == theirs.shape and np.allclose(
        ours, theirs, rtol=1e-6, atol=1e-7 * max(1.0, scale), equal_nan=True
    )


def _export_is_faithful(
    proto: onnx.ModelProto, module: Traced, expected: tuple[torch.Tensor, ...]
) -> bool:
    """Whether others find in the exported file what torch computed, or cannot tell."""
    import onnxruntime  # noqa: PLC0415 (only a disagreement needs it)
    from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented  # noqa: PLC0415

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    inputs = _arrays(proto, module)
    try:
        session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
        values = session.run(None, inputs)
    except NotImplemented:  # it has no kernel for float64
        values = _reference(proto, inputs)
    except Exception:
        return False
    if values is None:
        return True
    pairs = zip(values, expected, strict=True)
    return all(_close(value, theirs.detach().numpy()) for value, theirs in pairs)


def _reference(proto: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> list[np.ndarray] | None:
    """Return what the standard's own implementation computes; None if it does not serve it."""
    try:
        values = ReferenceEvaluator(proto).run(None, inputs)
    except Exception:  # it fails in many ways
        return None
    return [np.asarray(value) for value in values]


def main() -> int:
    """Compare all operators; return 1 if one is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser, STATUSES)
    parser.add_argument("--samples", type=int, default=4, help="of each; default: %(default)s")
    arguments = parser.parse_args()
    matches = re.compile(arguments.match).search
    chosen = [name for name in operators() if matches(name)]
    verdicts = judge_all(chosen, partial(judge, samples=arguments.samples), arguments.jobs)
    return tell(verdicts, STATUSES, arguments, "operators")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    operators()  # before the processes fork: collected once
    sys.exit(main())
