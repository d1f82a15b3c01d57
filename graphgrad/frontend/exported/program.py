"""An exported program as this room needs it: functional, in PyTorch's core operators.

What has a training form, and what would otherwise be lost, stays one operator.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.export import ExportedProgram, default_decompositions, export
from torch.export.graph_signature import InputKind, OutputKind

from ...errors import ModelError

_WHOLE = (
    torch.ops.aten.silu.default,
    torch.ops.aten.softplus.default,
    torch.ops.aten.upsample_bicubic2d.vec,
    torch.ops.aten.upsample_bilinear2d.vec,
    torch.ops.aten.upsample_linear1d.vec,
    torch.ops.aten.upsample_nearest1d.vec,
    torch.ops.aten.upsample_nearest2d.vec,
    torch.ops.aten.upsample_nearest3d.vec,
    torch.ops.aten.upsample_trilinear3d.vec,
)
"""Operators that are not decomposed, for one op of graphgrad's computes each."""

_STATISTICS = (3, 4)
"""Where a batch norm's running statistics stand among its arguments."""


_aten = torch.ops.aten
_LIBRARY = torch.library.Library("graphgrad", "FRAGMENT")
_LIBRARY.define("stop_gradient(Tensor x) -> Tensor")
_LIBRARY.define("dropout(Tensor x, float rate, bool train) -> Tensor")
for _name in ("stop_gradient", "dropout"):
    torch.library.impl(_LIBRARY, _name, "CompositeExplicitAutograd")(lambda x, *_: x.clone())

_STAND_INS = {
    _aten.detach.default: torch.ops.graphgrad.stop_gradient.default,
    _aten.dropout.default: torch.ops.graphgrad.dropout.default,
    _aten.dropout_.default: torch.ops.graphgrad.dropout.default,
}
"""What stands for operators that a decomposition would make nothing of: the other form, and the
gradient, would be gone without a trace. They are in programs alone, and never computed."""

_RESHAPES = {
    _aten.view.default: _aten.reshape.default,
    _aten._unsafe_view.default: _aten.reshape.default,
}
"""What takes the place of views: a decomposition may have its result in another order in memory
than the operator (that of attention has), which a view refuses."""


def exported(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any
) -> ExportedProgram:
    """The exported program of a module, in the form that it is in.

    Raises
    ------
    ModelError
        PyTorch cannot export it; has PyTorch's reason.
    """
    try:
        with _quiet():
            return export(module, args, kwargs, dynamic_shapes=dynamic_shapes)
    except Exception as error:  # of many types
        raise ModelError(f"torch.export refuses {type(module).__name__}: {error}") from error


def decomposed(program: ExportedProgram) -> ExportedProgram:
    """A program in core operators; the program itself stays as it is.

    Raises
    ------
    ModelError
        It changes what it has detached, in place, of which a stand-in would be a copy; or PyTorch
        cannot decompose it, and the error has PyTorch's reason.
    """
    for node in program.graph.nodes:
        if _changes_detached(node) and not _stands_in(node):
            raise ModelError(
                f"node {node.name!r} ({node.target.__name__}) changes a detached tensor in place, "
                "so that the tensor itself changes; compute a new one, or, of an embedding with "
                "max_norm, bound the weights outside of the module"
            )
    table = default_decompositions()
    for whole in _WHOLE:
        table.pop(whole, None)
    nodes = program.graph.nodes
    targets = {node: _STAND_INS[node.target] for node in nodes if _stands_in(node)}
    # A reshape may be a copy, which would not change with its source, nor its source with it.
    changed = {_base(value) for node in nodes for value in _changed_in_place(node)}
    targets |= {
        node: _RESHAPES[node.target]
        for node in nodes
        if node.target in _RESHAPES and _base(node) not in changed
    }
    before = {node: node.target for node in targets}
    try:
        for node, target in targets.items():
            node.target = target
        with _quiet():
            return program.run_decompositions(table)
    except Exception as error:  # of many types
        raise ModelError(f"PyTorch cannot decompose the exported program: {error}") from error
    finally:
        for node, target in before.items():
            node.target = target


def _stands_in(node: torch.fx.Node) -> bool:
    """Whether a node gets a stand-in; not if it changes a tensor that others read, too."""
    if node.target is _aten.dropout_.default and len(node.all_input_nodes[0].users) > 1:
        return False
    return node.target in _STAND_INS


def _changes_detached(node: torch.fx.Node) -> bool:
    """Whether a node changes a tensor in place that is detached, or a view of one."""
    return any(
        value.target is _aten.detach.default
        for changed in _changed_in_place(node)
        for value in _sources(changed)
    )


def _changed_in_place(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The arguments that a node changes."""
    arguments = getattr(getattr(node.target, "_schema", None), "arguments", ())
    given = [*node.args, *(node.kwargs.get(a.name) for a in arguments[len(node.args) :])]
    return [
        value
        for argument, value in zip(arguments, given, strict=False)
        if argument.alias_info is not None and argument.alias_info.is_write
        if isinstance(value, torch.fx.Node)
    ]


def _sources(value: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """A tensor, what it is a view of, what that is a view of, and so on."""
    yield value
    while value.op == "call_function":
        returns = getattr(getattr(value.target, "_schema", None), "returns", ())
        is_view = any(result.alias_info is not None for result in returns)
        if not is_view and value.target is not operator.getitem:
            return
        value = value.all_input_nodes[0]
        yield value


def _base(value: torch.fx.Node) -> torch.fx.Node:
    """The tensor that is a view of no other and has a tensor's memory."""
    *_, base = _sources(value)
    return base


@contextmanager
def _quiet() -> Iterator[None]:
    """Without PyTorch's warnings of what it will change in itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def notes_of(program: ExportedProgram) -> list[str]:
    """What a model does otherwise than the module: dropouts that it leaves out in any form."""
    return [
        f"{node.name} ({node.target.__name__}) never drops: only nn.Dropout has a training form"
        for node in program.graph.nodes
        if node.op == "call_function"
        and node.target.__name__.partition(".")[0].rstrip("_")
        in ("alpha_dropout", "feature_dropout")
    ]


def statistics_of(program: ExportedProgram) -> set[str]:
    """The names of the running statistics: what batch norms read as those, and are buffers."""
    placeholders = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    read = {
        node.args[place].name
        for node in program.graph.nodes
        if node.op == "call_function" and "batch_norm_legit" in node.target.__name__
        for place in _STATISTICS
        if isinstance(node.args[place], torch.fx.Node)
    }
    names = {spec.target for name, spec in placeholders.items() if name in read}
    return names & set(program.graph_signature.buffers)


def check_mutations(program: ExportedProgram, statistics: set[str]) -> None:
    """Raise `ModelError` if a call changes anything but running statistics and their counters."""
    changed = [
        spec.target
        for spec in program.graph_signature.output_specs
        if spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION)
    ]
    others = [
        name
        for name in changed
        if name not in statistics and not str(name).endswith("num_batches_tracked")
    ]
    if others:
        raise ModelError(
            f"a call of the module changes {others}, and a model changes nothing but the running "
            "statistics of batch norms: export the module without, for example in eval()"
        )


def make_parameters_of_buffers(program: ExportedProgram) -> dict[str, torch.Tensor]:
    """Declare the persistent buffers of a program parameters, which the importer keeps arguments.

    Returns
    -------
    dict of str to Tensor
        All parameters of the program now, by name.
    """
    specs = program.graph_signature.input_specs
    for spec in specs:
        if spec.kind is InputKind.BUFFER and spec.target in program.state_dict:
            spec.kind = InputKind.PARAMETER
    return {
        spec.target: program.state_dict[spec.target]
        for spec in specs
        if spec.kind is InputKind.PARAMETER
    }


def inputs_of(program: ExportedProgram) -> list[Any]:
    """What the arguments of a program's graph are; a target names what is no input of a user's."""
    return list(program.graph_signature.input_specs)
