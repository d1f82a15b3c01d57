"""The libraries of an export, one for each set of input shapes, with the step and the inference."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm.runtime import vm

from .arena import RELEASE, Arena, Workspace
from .arrays import Staging, lend, to_array
from .cudnn.engine import register as register_cudnn
from .errors import FolderError, InputError, MachineError
from .loading import load_library
from .results import NewResults, Returned, by_position

_CHECK = "Check failed"
"""In errors of what TVM checks of the arguments of a function, before it computes."""

Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class TensorType:
    """Name, dtype and shape of a tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    def check_dtype(self, label: str, array: Any) -> None:
        """Raise `InputError` unless an array has this dtype."""
        if str(array.dtype) != self.dtype:
            raise InputError(
                f"{label}: expected dtype {self.dtype}, given {array.dtype}; convert it"
            )

    def check(self, label: str, array: Any) -> None:
        """Raise `InputError` unless an array has this dtype and shape."""
        self.check_dtype(label, array)
        if tuple(array.shape) != self.shape:
            raise InputError(f"{label}: expected shape {self.shape}, given {tuple(array.shape)}")


def types_by_name(described: Iterable[Mapping[str, Any]]) -> dict[str, TensorType]:
    """Types as a manifest describes them."""
    types = (TensorType(ty["name"], ty["dtype"], tuple(ty["shape"])) for ty in described)
    return {ty.name: ty for ty in types}


class Library:
    """The library for one set of input shapes, loaded.

    Parameters
    ----------
    folder : Path
    entry : mapping
        As the manifest has it.
    device : Device
    arena : Arena
        For functions that are recorded.

    Attributes
    ----------
    machine : VirtualMachine
        That runs it.
    step, evaluate : callable
        A call of a step is a micro-batch of it where `end` is not None. It returns `NewResults`.
    end : callable or None
        Ends the window of a step of several micro-batches.
    shapes : tuple of tuple of int
        Of the inputs.
    seeded : bool
        Whether the step takes a seed: it drops values.

    Raises
    ------
    MachineError
        The library cannot be loaded.
    FolderError
        It lacks a function. Calls raise it, too, where one takes something else.
    """

    def __init__(
        self, folder: Path, entry: Mapping[str, Any], device: tvm.runtime.Device, arena: Arena
    ):
        library = folder / entry["library"]
        try:
            machine = vm.VirtualMachine(load_library(library, device), device)
            if device.type == "cuda":
                register_cudnn()  # the program may call it
        except (RuntimeError, OSError) as error:
            raise MachineError(f"{library} cannot be loaded: {error}") from error
        functions = {
            role: _function(machine, name, library) for role, name in entry["functions"].items()
        }
        self.machine = machine
        self.evaluate: Callable[..., Any] = functions.pop("evaluate")
        recorded = entry.get("recorded", {})
        release = _function(machine, RELEASE, library) if recorded else None
        updating = {
            role: _updating(function, release, recorded.get(role), arena)
            for role, function in functions.items()
        }
        self.step = updating["step"]
        self.end = updating.get("end_of_window")
        self.shapes: Shapes = tuple(tuple(ty["shape"]) for ty in entry["inputs"])
        self.seeded: bool = entry["seeded"]
        self._targets: Mapping[str, Any] | None = entry["targets"]
        self._device = device

    def targets(self, targets: Any, staging: Staging) -> list[tvm.runtime.Tensor]:
        """Targets as the step takes them, checked: none, or one tensor.

        Where their values are limited, as labels are, they are looked at on the host.

        Raises
        ------
        InputError
        """
        if self._targets is None:
            if targets is not None:
                raise InputError("targets were given, but the loss takes none")
            return []
        if targets is None:
            raise InputError("targets are missing: the loss compares the outputs with targets")
        [ty] = types_by_name([self._targets]).values()
        bounds = self._targets["range"]
        tensor_or_array = (
            lend(ty.name, targets, self._device) if bounds is None else to_array(ty.name, targets)
        )
        # Read where it is; another dtype is converted on the host.
        if (
            isinstance(tensor_or_array, tvm.runtime.Tensor)
            and str(tensor_or_array.dtype) == ty.dtype
        ):
            ty.check(ty.name, tensor_or_array)
            return [tensor_or_array]
        array = _converted(ty, to_array(ty.name, tensor_or_array))
        if bounds is not None:
            _check_range(ty.name, array, bounds, self._targets["ignored"])
        return [staging.queue(ty.name, array)]


def _function(machine: vm.VirtualMachine, name: str, library: Path) -> Callable[..., Any]:
    """A function of a library, which raises `FolderError` where the manifest describes another."""
    try:
        function = machine[name]
    except AttributeError as error:
        raise FolderError(
            f"{library} has no function {name!r}, which the manifest names"
        ) from error

    def call(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except (TypeError, ValueError, RuntimeError) as error:
            text = str(error)
            if isinstance(error, RuntimeError) and (_CHECK not in text or "CUDA" in text):
                raise
            raise FolderError(
                f"{library}: {name!r} does not take what the manifest says of it: {text}"
            ) from error

    return call


def _updating(
    function: Callable[..., Any],
    release: Callable[..., Any] | None,
    facts: Mapping[str, Any] | None,
    arena: Arena,
) -> Callable[..., NewResults]:
    """A function that overwrites arguments; recorded, where the manifest has facts for that."""
    if facts is None or release is None:
        return lambda *arguments: dict(enumerate(function(*arguments)))
    returned = Returned(**facts["returned"])
    recorded = arena.recorded(function, release, Workspace(**facts["workspace"]), returned)
    return by_position(recorded, returned.positions)


class Libraries:
    """The libraries of an export, by the shapes of the inputs.

    Parameters
    ----------
    folder : Path
    entries : sequence of mapping
        As the manifest has them.
    device : Device

    Attributes
    ----------
    arena : Arena
        The memory of all that is recorded.
    end : callable or None
        As of `Library`; it has nothing to do with the inputs.

    Raises
    ------
    MachineError
        A library cannot be loaded.
    """

    def __init__(
        self, folder: Path, entries: Sequence[Mapping[str, Any]], device: tvm.runtime.Device
    ):
        self.arena = Arena(device)
        libraries = [Library(folder, entry, device, self.arena) for entry in entries]
        self._libraries = {library.shapes: library for library in libraries}
        self._inputs = types_by_name(entries[0]["inputs"])
        self._device = device
        self.end = libraries[0].end

    def of(self, inputs: Any, staging: Staging) -> tuple[Library, list[tvm.runtime.Tensor]]:
        """The library for the shapes of the inputs, and the inputs on the device.

        Raises
        ------
        InputError
        """
        types = self._inputs
        if not isinstance(inputs, Mapping):
            if len(types) != 1:
                raise InputError(f"the model has inputs {list(types)}; give arrays by name")
            inputs = dict.fromkeys(types, inputs)
        if inputs.keys() != types.keys():
            raise InputError(f"given inputs {list(inputs)}, but the model has {list(types)}")
        tensors_or_arrays = {
            name: lend(f"input {name!r}", inputs[name], self._device) for name in types
        }
        for name, ty in types.items():
            ty.check_dtype(f"input {name!r}", tensors_or_arrays[name])
        shapes = tuple(tuple(map(int, array.shape)) for array in tensors_or_arrays.values())
        if shapes not in self._libraries:
            exported = ", or ".join(
                ", ".join(
                    f"{name!r} {shape}" for name, shape in zip(types, exported_shapes, strict=True)
                )
                for exported_shapes in self._libraries
            )
            raise InputError(f"inputs of shapes {shapes}: the export is for {exported} alone")
        tensors = [staging.on_device(f"input {name!r}", tensors_or_arrays[name]) for name in types]
        return self._libraries[shapes], tensors


def _check_range(
    label: str, array: np.ndarray, bounds: tuple[float, float], ignored: int | None
) -> None:
    """Raise `InputError` unless each element is within bounds, or is the ignored label."""
    low, high = bounds
    outside = ((array < low) | (array > high)) & (array != ignored)
    if outside.any():
        raise InputError(
            f"{label}: {array[outside][0]} is out of range; they go from {low} to {high}"
        )


def _converted(ty: TensorType, array: np.ndarray) -> np.ndarray:
    """Targets in the dtype that the step takes; any integers or numbers become that.

    Raises
    ------
    InputError
    """
    # Kinds of numpy's dtypes by that of the target: integers are taken for floats, not vice versa.
    accepted = {"b": "b", "i": "iu", "u": "iu"}.get(np.dtype(ty.dtype).kind, "iufV")
    if array.dtype.kind not in accepted:
        raise InputError(f"{ty.name}: expected {ty.dtype}, given {array.dtype}; convert them")
    converted = array.astype(ty.dtype)
    ty.check(ty.name, converted)
    return converted
