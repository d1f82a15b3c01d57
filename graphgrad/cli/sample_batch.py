"""The batch that ``bench`` and ``report`` train on."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from tvm import relax

from ..errors import ArgumentError
from ..frontend.model import Model
from ..ir.tensor import is_float, type_shape
from ..train.data import TargetKind, batches, load_npz
from ..train.inputs import input_types
from ..train.loss import LOSSES
from ..train.run import bound


def sample_batch(model: Model, arguments: argparse.Namespace) -> tuple[Any, np.ndarray | None]:
    """The inputs and targets to train on: a batch of the file ``--data``, or random values.

    Raises
    ------
    ArgumentError
        Nothing can be drawn for the model or its loss.
    """
    kind: TargetKind | None = None
    if arguments.loss not in model.outputs:
        built_in_loss = LOSSES.get(arguments.loss)
        kind = (
            "values" if built_in_loss is not None and not built_in_loss.takes_labels else "labels"
        )
    if arguments.data is None:
        return _drawn_batch(model, arguments, kind)
    names = model.inputs if len(model.inputs) > 1 else ["x"]
    dataset = load_npz(Path(arguments.data), inputs=names, targets=kind)
    first_batch = next(batches(dataset.train, arguments.batch, seed=arguments.seed, epoch=0))
    return bound(first_batch), first_batch.targets


def _drawn_batch(
    model: Model, arguments: argparse.Namespace, kind: TargetKind | None
) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
    """Random inputs in the model's shapes, and targets of a kind; None for a loss without any."""
    generator = np.random.default_rng(arguments.seed)
    extents: dict[Any, int] = {}
    inputs = {
        name: _drawn(generator, _shape(name, ty, arguments.batch, extents), str(ty.dtype))
        for name, ty in input_types(model).items()
    }
    if kind is None:
        return inputs, None
    bound_mod = relax.transform.BindSymbolicVars(extents, "main")(model.mod)
    output = _first_output(bound_mod["main"].ret_ty)
    shape = [int(extent) for extent in type_shape(output)]
    if kind == "values":
        return inputs, _drawn(generator, shape, str(output.dtype))
    if len(shape) < 2:
        raise ArgumentError(
            f"no labels can be drawn for an output of shape {tuple(shape)}; give arrays with "
            "--data, or another --loss"
        )
    return inputs, generator.integers(0, shape[1], [shape[0], *shape[2:]])


def _first_output(ty: Any) -> Any:
    """The type of a model's first output."""
    while isinstance(ty, relax.TupleType):
        ty = ty.fields[0]
    return ty


def _shape(name: str, ty: Any, batch: int, extents: dict[Any, int]) -> list[int]:
    """The concrete shape of an input; note the extents of its symbolic dimensions."""
    shape = []
    for axis, extent in enumerate(type_shape(ty)):
        if isinstance(extent, int):
            shape.append(extent)
        # A symbolic first dimension is taken for that of the examples.
        elif axis == 0 or extent in extents:
            shape.append(extents.setdefault(extent, batch))
        else:
            raise ArgumentError(
                f"input {name!r} has the symbolic dimension {extent} beside the batch; give arrays "
                "of the shapes that you want with --data"
            )
    return shape


def _drawn(generator: np.random.Generator, shape: list[int], dtype: str) -> np.ndarray:
    """Random values: normal floats; integers 0 and 1, which are indices of most tables."""
    if is_float(dtype):
        return generator.standard_normal(shape).astype(np.dtype(dtype))
    return generator.integers(0, 2, shape).astype(dtype)
