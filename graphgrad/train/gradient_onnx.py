"""`gradient_to_onnx`: a model with its gradients as an ONNX file, for any runtime."""

from __future__ import annotations

import os
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any

import onnx
from tvm import relax

from ..autodiff.activity import has_cotangent, select
from ..autodiff.nested import map_leaves
from ..autodiff.reverse import Gradients
from ..errors import ModelError
from ..files import check_path, write_file
from ..frontend.model import Model
from ..frontend.onnx_export import MAX_FILE_BYTES
from ..frontend.onnx_load import check
from ..frontend.writer import model_of_program
from ..ir.tensor import Emitter
from ..ir.write import new_program
from .forward import LossChoice
from .operators import in_operators
from .recipe import objective
from .value_and_grad import LOSS, TARGETS, named_values

SEED = "seed"
"""The input of dropouts."""


def gradient_to_onnx(
    model: Model,
    path: str | os.PathLike[str],
    wrt: str | Sequence[str] | None = None,
    loss: LossChoice = None,
    training: bool | None = None,
    *,
    rules: str = "auto",
    opset: int | None = None,
) -> onnx.ModelProto:
    """Write a model with its gradients as an ONNX file.

    The file has operators of the default domain only, and runs in any runtime. Its inputs are those
    of the model, every parameter and statistic (whose values are there, unless they are given),
    ``targets`` if the loss takes any, ``seed`` (an int64 scalar) if dropouts drop values, and
    without a loss the cotangent ``y.cotangent`` of each float output ``y``. Its outputs are those
    of the model, ``loss`` in front if there is one, and ``x.grad`` for each value ``x`` that is
    differentiated. Symbolic dimensions stay.

    Parameters
    ----------
    model : Model
    path : path
    wrt, loss, training, rules
        As of `value_and_grad`.
    opset : int, optional
        The version of the default domain, 17 to 21; by default the lowest that serves: 17, or 18
        where dropouts drop values.

    Returns
    -------
    onnx.ModelProto
        What was written.

    Raises
    ------
    ArgumentError
        A name or value is unknown, or the folder of `path` does not exist.
    MissingGradientError
        Some ops have no gradient; the error lists all of them.
    ModelError
        Some ops are not written as ONNX. The error lists all of them and why, with their
        nodes, and no file is touched.
    OutputError
        The file cannot be written; one of the same name is untouched.

    Examples
    --------
    >>> gg.gradient_to_onnx(model, "gradient.onnx", loss="cross_entropy")
    >>> session = onnxruntime.InferenceSession("gradient.onnx")
    >>> loss, logits, *gradients = session.run(None, {"x": x, "targets": labels})
    """
    path = check_path(path)
    proto = _gradient_proto(model, wrt, loss, training, rules, opset)
    write_model(proto, path)
    return proto


def write_model(proto: onnx.ModelProto, path: Path) -> None:
    """Check an ONNX model, and write it.

    Raises
    ------
    ModelError
        It is not valid, or larger than one file may be.
    OutputError
    """
    size = proto.ByteSize()
    if size > MAX_FILE_BYTES:
        raise ModelError(
            f"{path.name} would have {size / 1e9:.1f} GB, and an ONNX file holds 2; train it with "
            "graphgrad.train_step, or export that with graphgrad.export_step"
        )
    check(proto)
    write_file(path, proto.SerializeToString())


def _gradient_proto(
    model: Model,
    wrt: Any,
    loss: LossChoice,
    training: bool | None,
    rules: str,
    opset: int | None,
) -> onnx.ModelProto:
    checked = objective(
        model, loss, wrt, "llvm", rules, True, "float32", None, training, named_values
    )
    forward = checked.inlined.for_any_shapes(checked.loss)
    program, variables = forward.program, select(forward.program, checked.wrt_variables)
    taken = {*model.inputs, *model.params, *model.state, *model.outputs, LOSS, TARGETS, SEED}
    cotangents: dict[str, Any] = {}  # by the outputs that they are of
    if not checked.loss.is_given:
        for name, ty in zip(model.outputs, forward.outputs, strict=True):
            if has_cotangent(ty):
                cotangents[name] = relax.Var(_unused(name, ".cotangent", taken), ty)
    derivative = Gradients(program, variables)

    def body(emitter: Emitter) -> Any:
        if checked.loss.is_given:
            dtype = str(program.result.ty.fields[0].dtype)
            seed: list[Any] = [emitter.full(1.0, [], dtype), None, None]
        else:
            given = [cotangents.get(name) for name in model.outputs]
            seed = [map_leaves(emitter.lift, given), None]
        result, gradients = derivative.emit(emitter, seed)
        *losses, outputs, _ = result.fields
        return (*losses, *outputs.fields, *gradients)

    params = [*program.params, *cotangents.values()]
    gradient = in_operators(new_program(program, "gradient", params, body))
    targets = [TARGETS] if forward.targets is not None else []
    seeds = [SEED] if forward.seeded else []
    losses = [LOSS] if checked.loss.is_given else []
    named = [cotangent.name for cotangent in cotangents.values()]
    return model_of_program(
        gradient,
        [*model.inputs, *targets, *model.params, *model.state, *seeds, *named],
        [*losses, *model.outputs, *(_unused(name, ".grad", taken) for name in checked.wrt)],
        {**model.params, **model.state},
        opset,
    )


def _unused(name: str, suffix: str, taken: Container[str]) -> str:
    """A name with a suffix; with several, where the model is a gradient and has such a name."""
    name += suffix
    return _unused(name, suffix, taken) if name in taken else name
