"""Exports: folders that TVM's runtime alone loads and trains on; `docs/export.md` shows one.

A library, the state and a manifest, and for CUDA the machine code of the kernels; and the package
`exported_step`, which loads them. A folder is written beside its place and renamed into it.
"""

from __future__ import annotations

import operator
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tvm
from tvm.support import cc

from .. import runtime
from ..errors import ArgumentError, ExportError, InputError
from ..frontend.model import Model
from ..ir.tensor import type_shape
from ..lower.cuda.compiler import arch_of, executable_sources, machine_code
from ..lower.pipeline import compile_finished
from ..memory.budget import MemoryBudget
from ..memory.workspace import take_to_record
from ..precision.choice import Precision
from ..runtime.folder import kernels_file
from ..runtime.manifest import LOADER, STATE
from . import checkpoint
from .accumulate import END_OF_WINDOW
from .export_folder import replace_folder
from .export_manifest import describe_entry, described, write_manifest
from .forward import FORWARD, LossChoice
from .inputs import bind_shapes
from .optimizer import SGD, Optimizer
from .recipe import Recipe, recipe
from .results import drop_arguments
from .shapes import Shaped

InputShapes = Mapping[str, Sequence[int]]
"""Shapes by input name."""


def export_step(
    model: Model,
    path: str | os.PathLike[str],
    loss: LossChoice = "cross_entropy",
    optimizer: Optimizer = SGD(0.1, momentum=0.9),  # noqa: B008 (frozen)
    wrt: str | Sequence[str] | None = None,
    target: Any = "llvm",
    shapes: InputShapes | Sequence[InputShapes] | None = None,
    weights: bool = True,
    seed: int = 0,
    rules: str = "auto",
    accumulate: int = 1,
    winograd: bool = True,
    precision: str | Precision = "float32",
    memory: int | float | MemoryBudget | None = None,
    libraries: bool = True,
    cuda_graph: bool = True,
) -> None:
    """Write a training step that has made no step yet, for a target that need not be here.

    ``step.export`` writes one that has; it needs the target's device, this does not.

    Parameters
    ----------
    model, loss, optimizer, wrt, target, seed, rules, accumulate, winograd, precision, memory
        As of `train_step`, and so are `libraries` and `cuda_graph`.
    path : path
        The folder to write. An export that stands there is replaced, anything else is left alone.
    shapes : mapping of str to shape, or a sequence of those, optional
        By input name; a library is made for each. May be left out where the model's are static.
    weights : bool
        False leaves the parameters and statistics out; whoever loads the export then gives them.

    Raises
    ------
    ArgumentError
        A value is unknown, or shapes are missing or do not fit.
    MissingGradientError
        Some ops have no gradient; the error lists all of them.
    LoweringError
        Kernels cannot be made for the target.
    ExportError
        The folder cannot be written, or there is no C compiler to link a library with.

    Examples
    --------
    >>> cuda = {"kind": "cuda", "arch": "sm_90"}
    >>> gg.export_step(model, "resnet", target=cuda, shapes={"x": (64, 3, 224, 224)})
    """
    step_recipe = recipe(
        model, loss, optimizer, wrt, target, seed, rules, accumulate, winograd, precision, memory,
        libraries, cuda_graph,
    )  # fmt: skip
    shape_sets = chosen_shapes(step_recipe.input_types, shapes, [])
    initial_facts = {
        "optimizer": step_recipe.method,
        "learning_rate": float(optimizer.learning_rate),
        "steps": 0,
        "skipped": 0,
        "seed": step_recipe.seed,
    }

    def write_state(file: Path) -> None:
        # Without a device: the target's need not be in this machine.
        groups = step_recipe.owned.started({**model.params, **model.state})
        checkpoint.write(file, groups, {**initial_facts, "extra": {}})

    write_export(path, step_recipe, shape_sets, initial_facts, write_state if weights else None)


def chosen_shapes(
    types: Mapping[str, Any],
    shapes: InputShapes | Sequence[InputShapes] | None,
    compiled: Iterable[Sequence[Sequence[int]]],
) -> list[dict[str, tuple[int, ...]]]:
    """The sets of input shapes to export: those given, else those known, else static ones.

    Parameters
    ----------
    types : mapping of str to relax.TensorType
        Of the model's inputs.
    shapes : mapping of str to shape, or a sequence of those, optional
        The argument of `export_step`.
    compiled : iterable
        The sets that a step has compiled so far, each the shapes of all inputs in order.

    Raises
    ------
    ArgumentError
        There are none, or some do not fit the model.
    """
    if shapes is not None:
        shape_sets = _sets(shapes, list(types))
    else:
        shape_sets = [dict(zip(types, extents, strict=True)) for extents in compiled]
        if not shape_sets and all(map(_is_static, types.values())):
            shape_sets = [{name: type_shape(ty) for name, ty in types.items()}]
    if not shape_sets:
        raise ArgumentError(
            "shapes: nothing says for which input shapes to export; give shapes={name: shape} for "
            f"the inputs {list(types)}, or make a step first"
        )
    checked = []
    for shape_set in shape_sets:
        checked_set = _checked(shape_set, types, shapes)
        if checked_set not in checked:
            checked.append(checked_set)
    return checked


def _sets(shapes: Any, names: list[str]) -> list[Any]:
    """The sets of shapes in an argument that is one set or several; `_checked` looks at each."""
    shape_sets = [shapes] if isinstance(shapes, Mapping | str) else shapes
    if not isinstance(shape_sets, Iterable):
        raise ArgumentError(_expected(shapes, names))
    return list(shape_sets)


def _checked(shape_set: Any, types: Mapping[str, Any], argument: Any) -> dict[str, tuple[int, ...]]:
    """One set of shapes, checked, in the order of the inputs; errors quote the whole argument."""
    names = list(types)
    if not isinstance(shape_set, Mapping) or set(shape_set) != set(names):
        raise ArgumentError(_expected(argument, names))
    try:
        sizes = {name: tuple(map(operator.index, shape_set[name])) for name in names}
    except TypeError as error:
        raise ArgumentError(f"shapes={argument!r}: a shape is a tuple of whole numbers") from error
    if any(extent < 0 for shape in sizes.values() for extent in shape):
        raise ArgumentError(f"shapes={argument!r}: an extent is negative")
    try:
        bind_shapes({name: Shaped(types[name].dtype, sizes[name]) for name in names}, types)
    except InputError as error:
        raise ArgumentError(f"shapes: {error}") from error
    return sizes


def _expected(argument: Any, names: list[str]) -> str:
    """The message of an argument that is none of the forms in which shapes are given."""
    return f"shapes={argument!r}: give {{name: shape}} for the inputs {names}, or a list of those"


def _is_static(ty: Any) -> bool:
    """Whether a tensor's type has no symbolic dimension."""
    return all(isinstance(extent, int) for extent in type_shape(ty))


def write_export(
    path: str | os.PathLike[str],
    made: Recipe,
    shapes: Sequence[Mapping[str, tuple[int, ...]]],
    facts: Mapping[str, Any],
    write_state: Callable[[Path], None] | None,
) -> None:
    """Write an export.

    Parameters
    ----------
    path : path
    made : Recipe
        The step to export.
    shapes : sequence of mapping of str to tuple of int
        The sets of input shapes; a library is made for each.
    facts : mapping
        Optimizer, learning rate, steps, skipped and seed, and the position in an open window, as a
        checkpoint names them.
    write_state : callable, optional
        Writes the checkpoint to a path.

    Raises
    ------
    LoweringError, ExportError
        As `export_step`.
    """
    if cc.get_cc() is None:
        raise ExportError(
            "there is no C compiler to link a library with: install g++, gcc or clang, or name one "
            "in the environment variable CXX"
        )
    # The manifest comes last: it holds the digests of all other files.
    with replace_folder(path) as folder:
        entries = [
            _write_library(folder, f"step-{index}.so", made, shape_set)
            for index, shape_set in enumerate(shapes)
        ]
        if write_state is not None:
            write_state(folder / STATE)
        loader = Path(runtime.__file__).parent
        shutil.copytree(loader, folder / LOADER, ignore=shutil.ignore_patterns("__pycache__"))
        write_manifest(folder, {**described(made), **facts, "entries": entries})


def _write_library(
    folder: Path, name: str, step_recipe: Recipe, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Any]:
    """Write the library for some input shapes; return what the manifest says of it."""
    forward = step_recipe.forward(shapes.values())
    functions = {"step": step_recipe.step_name, "evaluate": FORWARD}
    mod = step_recipe.evaluation(shapes.values(), beside=step_recipe.step(forward))
    if step_recipe.accumulate > 1:
        functions["end_of_window"] = END_OF_WINDOW
        mod.update(step_recipe.end_of_window())
    budget = step_recipe.step_budget()
    is_cuda = str(step_recipe.target.kind.name) == "cuda"
    updating = [name for name in functions.values() if name != FORWARD]
    records = is_cuda and step_recipe.cuda_graph
    executable, facts = compile_finished(
        mod,
        step_recipe.target,
        (lambda lowered: _to_record(lowered, updating)) if records else None,
        winograd=step_recipe.winograd,
        budget=budget,
        libraries=step_recipe.libraries,
        tf32=step_recipe.precision.is_tf32,
    )
    recorded: dict[str, Any] = facts or {}
    try:
        executable.export_library(str(folder / name))
    except RuntimeError as error:
        raise ExportError(str(error)) from error
    if is_cuda:
        _write_kernels(folder, folder / name, executable, arch_of(step_recipe.target))
    return {
        "library": name,
        "functions": functions,
        "recorded": {role: recorded[name] for role, name in functions.items() if name in recorded},
        **describe_entry(step_recipe, shapes, forward),
    }


def _to_record(
    lowered: tvm.IRModule, names: Sequence[str]
) -> tuple[tvm.IRModule, dict[str, dict[str, Any]]]:
    """Have functions that overwrite arguments take their workspace, to be recorded.

    Returns
    -------
    mod : IRModule
    facts : dict of str to dict
        Of each function that can be: its `Workspace`, and what is `Returned`.
    """
    facts: dict[str, dict[str, Any]] = {}
    for name in names:
        dropped, returned = drop_arguments(lowered, name)
        taken, workspace = take_to_record(dropped, name)
        if workspace is not None:
            lowered = taken
            facts[name] = {"workspace": asdict(workspace), "returned": asdict(returned)}
    return lowered, facts


def _write_kernels(folder: Path, library: Path, executable: Any, arch: str) -> None:
    """Write the machine code that the runtime will ask for, named by its source.

    Where a CUDA runtime was loaded, a library holds machine code in place of source, and the
    runtime will not ask.
    """
    library_bytes = library.read_bytes()
    for source in executable_sources(executable):
        if source.encode() in library_bytes:
            file = folder / kernels_file(source)
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(machine_code(source, arch))
