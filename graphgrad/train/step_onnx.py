"""`step_to_onnx`: a training step as an ONNX file, for any runtime."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import numpy as np
import onnx

from ..errors import ArgumentError
from ..files import check_path
from ..frontend.model import Model
from ..frontend.writer import model_of_program, model_of_values
from ..ir.inline import inline_calls
from .forward import LossChoice
from .gradient_onnx import SEED, write_model
from .operators import in_operators
from .optimizer import SGD, Optimizer
from .recipe import Recipe, recipe
from .update import STEP, build_step
from .value_and_grad import LOSS, TARGETS

RATE = "learning_rate"
UPDATES = "updates"


def step_to_onnx(
    model: Model,
    path: str | os.PathLike[str],
    loss: LossChoice = "cross_entropy",
    optimizer: Optimizer = SGD(0.1, momentum=0.9),  # noqa: B008 (frozen)
    wrt: str | Sequence[str] | None = None,
    *,
    start: str | os.PathLike[str] | None = None,
    rules: str = "auto",
    opset: int | None = None,
) -> onnx.ModelProto:
    """Write a training step as an ONNX file: state in, state out.

    The file has operators of the default domain only, and trains in any runtime. It computes what
    a `train_step` of the same arguments computes; where the loss, a gradient or a new statistic is
    not finite, the new state is the old one, bit for bit. Symbolic dimensions stay.

    Its inputs are those of the model, and

    - ``targets``, if the loss takes any;
    - ``seed``, an int64 scalar, if dropouts drop values: another number for each step;
    - ``learning_rate``, a float64 scalar: that of the optimizer, unless it is given;
    - ``updates``, a float64 scalar: how many steps have changed something, from 0;
    - every parameter and statistic ``x``, by its name, and the optimizer's buffers, ``x.momentum``
      and the like, by the names of ``step.optimizer_state``. Their first values are in the file.

    Its outputs are ``loss``, of the parameters before the step, ``updates.next``, and ``x.next``
    for every parameter that trains, every statistic and every buffer ``x``: what the next step is
    given for ``x``.

    Parameters
    ----------
    model : Model
    path : path
    loss, optimizer, wrt, rules
        As of `train_step`.
    start : path, optional
        Where to write the first values, which are not in the file then: a model without inputs,
        whose outputs are the values by name. For runtimes that give no other value to an input that
        has one, such as onnxruntime-web.
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
        A name or value is unknown, the version does not serve, parameters that train are of half
        precision, or the folder of `path` does not exist.
    MissingGradientError
        Some ops have no gradient; the error lists all of them.
    ModelError
        Some ops are not written as ONNX. The error lists all of them and why, with their
        nodes, and no file is touched.
    OutputError
        The file cannot be written; one of the same name is untouched.

    Examples
    --------
    >>> gg.step_to_onnx(model, "step.onnx", "cross_entropy", gg.optim.Adam(1e-3))
    >>> session, state = onnxruntime.InferenceSession("step.onnx"), {}
    >>> owned = [output.name.removesuffix(".next") for output in session.get_outputs()[1:]]
    >>> for x, labels in batches:
    ...     loss, *new = session.run(None, {"x": x, "targets": labels, **state})
    ...     state = dict(zip(owned, new))
    """
    path = check_path(path)
    start_path = None if start is None else check_path(start)
    if path == start_path:
        raise ArgumentError(f"start={start!r} is the path of the step, too")
    made = recipe(model, loss, optimizer, wrt, "llvm", 0, rules)
    values = _first_values(made)
    names = [name for name, _ in values]
    proto = _step_proto(made, opset, names, dict(values) if start_path is None else {})
    if start_path is not None:
        write_model(model_of_values("start", dict(values)), start_path)
    write_model(proto, path)
    return proto


def _first_values(made: Recipe) -> list[tuple[str, np.ndarray]]:
    """The names and values that a step starts with, in the order of its inputs."""
    model = made.model
    groups = made.owned.started({**model.params, **model.state})
    buffers = [
        (f"{name}.{slot}", array)
        for slot in made.optimizer.slots
        for name, array in groups[slot].items()
    ]
    scalars = [(RATE, np.array(float(made.optimizer.learning_rate))), (UPDATES, np.zeros(()))]
    return [*scalars, *model.params.items(), *model.state.items(), *buffers]


def _step_proto(
    made: Recipe, opset: int | None, inputs: Sequence[str], values: Mapping[str, np.ndarray]
) -> onnx.ModelProto:
    """The step as an ONNX model.

    Parameters
    ----------
    made : Recipe
    opset : int, optional
    inputs : sequence of str
        Names of the learning rate, and of all that the step owns.
    values : mapping
        What the file has of their values.

    Raises
    ------
    ArgumentError, ModelError
    """
    model = made.model
    _check_dtypes(made)
    forward = made.inlined.for_any_shapes(made.loss)
    program = inline_calls(build_step(forward, made.wrt, made.optimizer), STEP)
    rate, *owned = inputs
    targets = [TARGETS] if forward.targets is not None else []
    seeds = [SEED] if forward.seeded else []
    fixed = model.params.keys() - made.wrt
    replaced = [name for name in owned if name not in fixed]
    return model_of_program(
        in_operators(program),
        [*model.inputs, *targets, rate, *seeds, *owned],
        [LOSS, *(f"{name}.next" for name in replaced)],
        values,
        opset,
    )


def _check_dtypes(made: Recipe) -> None:
    """Raise `ArgumentError` if parameters that train are of half precision."""
    for name in made.wrt:
        dtype = str(made.model.params[name].dtype)
        if dtype not in ("float32", "float64"):
            raise ArgumentError(
                f"the parameter {name!r} is {dtype}; steps are written as ONNX for parameters of "
                "float32 and float64: convert it, or train with graphgrad.train_step"
            )
