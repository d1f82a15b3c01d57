"""`from_torch`: import of PyTorch's modules and exported programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax

from ..errors import ArgumentError
from ..ir.compile_lock import COMPILE_LOCK
from ..ir.kernel_structure import substitute_values
from ..required import require
from .model import Model
from .onnx_importer import TRAINING_DROPOUTS
from .relax_main import rebuilt


def from_torch(
    module_or_exported_program: Any,
    example_inputs: Any = None,
    *,
    dynamic_shapes: Any = None,
) -> Model:
    """A model of a module or an exported program of PyTorch.

    Parameters
    ----------
    module_or_exported_program : torch.nn.Module or torch.export.ExportedProgram
        A module is exported by ``torch.export.export`` in the form that it is in, `training` or
        not; batch norms and dropouts keep what the other form needs.
    example_inputs : tensor, sequence or dict, optional
        What a module is called with: a tensor, its arguments in order, or by name. An exported
        program has its own.
    dynamic_shapes : optional
        As ``torch.export.export`` takes it: which dimensions are symbolic.

    Returns
    -------
    Model
        Parameters and statistics have the names of ``state_dict()``, inputs those of the module's
        arguments. Parameters that do not require a gradient are frozen, other buffers are
        constants.

    Raises
    ------
    ArgumentError
        PyTorch is missing or too old, or arguments are none of these.
    ModelError
        PyTorch cannot export the module, operators have no translation, all of which are listed,
        or a call changes more than running statistics.

    Examples
    --------
    >>> model = gg.from_torch(torchvision.models.resnet18(), torch.randn(8, 3, 224, 224))
    """
    torch = require("torch")
    from .exported import program as programs  # noqa: PLC0415

    given = module_or_exported_program
    if isinstance(given, torch.nn.Module):
        args, kwargs = _arguments(example_inputs, torch)
        program = programs.exported(given, args, kwargs, dynamic_shapes)
    elif isinstance(given, torch.export.ExportedProgram):
        if example_inputs is not None or dynamic_shapes is not None:
            raise ArgumentError(
                "an exported program has its inputs and their shapes: leave example_inputs and "
                "dynamic_shapes out"
            )
        program = given
    else:
        raise ArgumentError(
            f"expected a torch.nn.Module or an ExportedProgram, given a {type(given).__name__}"
        )
    frozen = {name for name, p in program.named_parameters() if not p.requires_grad}
    return _model(programs, program).freeze(*frozen)


def _arguments(example_inputs: Any, torch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a module is called with, by position and by name."""
    if isinstance(example_inputs, torch.Tensor):
        return (example_inputs,), {}
    if isinstance(example_inputs, Mapping):
        return (), dict(example_inputs)
    if not isinstance(example_inputs, Sequence):
        raise ArgumentError(
            f"example_inputs is a {type(example_inputs).__name__}; give what the module is called "
            "with: a tensor, a tuple of arguments, or a dict of them by name"
        )
    return tuple(example_inputs), {}


def _model(programs: Any, program: Any) -> Model:
    """The model of an exported program."""
    from tvm.relax.frontend.torch import from_exported_program  # noqa: PLC0415

    from .exported.translation import Translation  # noqa: PLC0415

    core = programs.decomposed(program)
    statistics = programs.statistics_of(core)
    programs.check_mutations(core, statistics)
    buffers = set(core.graph_signature.buffers)
    values = programs.make_parameters_of_buffers(core)
    translation = Translation(core.graph)
    with COMPILE_LOCK:
        mod = from_exported_program(
            core,
            keep_params_as_input=True,
            unwrap_unit_return_tuple=True,
            run_ep_decomposition=False,
            custom_convert_map=translation.converters(),
        )
        mod["main"] = translation.written(mod["main"])
        mod = relax.transform.CanonicalizeBindings()(mod)
        mod = relax.transform.DeadCodeElimination(["main"])(mod)
    main = mod["main"].without_attr("params")
    if translation.training_dropouts:
        main = main.with_attr(TRAINING_DROPOUTS, translation.training_dropouts)
    names = {spec.arg.name: spec.target or spec.arg.name for spec in programs.inputs_of(core)}
    mod["main"] = _with_names(main, names)
    used = {var.name for var in mod["main"].params}
    params = {name: v for name, v in values.items() if name in used and name not in statistics}
    state = {name: v for name, v in values.items() if name in used and name in statistics}
    notes = programs.notes_of(program)
    return Model(mod, params, state, constants=buffers & params.keys(), notes=notes)


def _with_names(function: relax.Function, names: Mapping[str, str]) -> relax.Function:
    """A function whose parameters have other names; those that nothing reads are left out.

    Inputs stay in any case: they are what the module was called with.
    """
    read = set(relax.analysis.free_vars(function.body))
    inputs = int(function.attrs["num_input"])
    kept = [var for n, var in enumerate(function.params) if n < inputs or var in read]
    renamed = {var: relax.Var(names.get(var.name, var.name), var.ty) for var in kept}
    return substitute_values(rebuilt(function, params=kept), renamed)
