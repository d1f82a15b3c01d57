"""`gradient_to_onnx`: a model with its gradients as an ONNX file, for any runtime."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import onnx
from tvm import relax

from ..autodiff.activity import has_cotangent, location, op_name, select
from ..autodiff.derive import KERNEL_CALLS, derive_rule
from ..autodiff.nested import map_leaves
from ..autodiff.reverse import Gradients
from ..autodiff.written_out import written_out
from ..errors import LoweringError, MissingGradientError, ModelError
from ..files import check_path, write_file
from ..frontend.model import Model
from ..frontend.onnx_load import check
from ..frontend.writer import model_of_program, unwritable
from ..ir.program import Program, variables_in
from ..ir.tensor import Emitter
from ..ir.write import new_program
from .forward import LossChoice
from .recipe import objective
from .value_and_grad import LOSS, TARGETS, named_values


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
    ``targets`` if the loss takes any, and without a loss the cotangent ``y.cotangent`` of each
    float output ``y``. Its outputs are those of the model, ``loss`` in front if there is one, and
    ``x.grad`` for each value ``x`` that is differentiated. Symbolic dimensions stay.

    Parameters
    ----------
    model : Model
    path : path
    wrt, loss, training, rules
        As of `value_and_grad`.
    opset : int, optional
        The version of the default domain, 17 to 21; by default the lowest.

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
        Some ops are not written as ONNX: kernels that are derived, random numbers, branches. The
        error lists all of them, with their nodes, and no file is touched.
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
    check(proto)
    write_file(path, proto.SerializeToString())
    return proto


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
    if forward.seeded:
        raise ModelError(
            "the model drops values at random, which is not written as ONNX; give training=False"
        )
    program, variables = forward.program, select(forward.program, checked.wrt_variables)
    cotangents: dict[str, Any] = {}
    if not checked.loss.is_given:
        for name, ty in zip(model.outputs, forward.outputs, strict=True):
            if has_cotangent(ty):
                cotangents[f"{name}.cotangent"] = relax.Var(f"{name}.cotangent", ty)
    derivative = Gradients(program, variables)

    def body(emitter: Emitter) -> Any:
        if checked.loss.is_given:
            dtype = str(program.result.ty.fields[0].dtype)
            seed: list[Any] = [emitter.full(1.0, [], dtype), None, None]
        else:
            given = [cotangents.get(f"{name}.cotangent") for name in model.outputs]
            seed = [map_leaves(emitter.lift, given), None]
        result, gradients = derivative.emit(emitter, seed)
        *losses, outputs, _ = result.fields
        return (*losses, *outputs.fields, *gradients)

    params = [*program.params, *cotangents.values()]
    gradient = _in_operators(new_program(program, "gradient", params, body))
    targets = [TARGETS] if forward.targets is not None else []
    losses = [LOSS] if checked.loss.is_given else []
    return model_of_program(
        gradient,
        [*model.inputs, *targets, *model.params, *model.state, *cotangents],
        [*losses, *model.outputs, *(f"{name}.grad" for name in checked.wrt)],
        {**model.params, **model.state},
        opset,
    )


def _in_operators(program: Program) -> Program:
    """A program in which ops that are not written are stated in others, as they are lowered.

    Raises
    ------
    ModelError
        Some cannot be; names all of them.
    """
    kernels = dict(program.kernels)
    problems: dict[str, list[str]] = {}

    def stated(var: Any, value: Any, origin: str) -> list[tuple[Any, Any]]:
        name = unwritable(value)
        if name is None:
            return [(var, value)]
        origin = origin or op_name(value)
        try:
            # Without tensors there is nothing that a statement could begin with.
            is_stated = isinstance(value, relax.Call) and len([*variables_in(value)]) > 0
            if name in KERNEL_CALLS or not is_stated:
                raise MissingGradientError(name)
            form = written_out(derive_rule(value, kernels), var, value)
        except (MissingGradientError, LoweringError):
            problems.setdefault(origin, []).append(location(var, value))
            return [(var, value)]
        kernels.update(form.kernels)
        return [binding for inner in form.bindings for binding in stated(*inner, origin)]

    bindings = [binding for var, value in program.bindings for binding in stated(var, value, "")]
    if problems:
        lines = [
            f"  {name} ×{len(places)}: {', '.join(dict.fromkeys(places))}"
            for name, places in sorted(problems.items())
        ]
        raise ModelError(
            f"{len(problems)} op(s) of the gradient are not written as ONNX, as they are kernels "
            "there:\n" + "\n".join(lines) + "\nRun it with graphgrad.value_and_grad, or leave "
            "them out of what is differentiated."
        )
    return replace(program, bindings=bindings, kernels=kernels)
