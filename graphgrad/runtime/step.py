"""`ExportedStep`: a training step, loaded from an export."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

import numpy as np
import tvm

from . import state_file
from .arrays import Arrays, Staging, to_array, to_arrays
from .errors import ExportedStepError, FolderError, InputError, OutOfMemoryError
from .folder import MANIFEST, check_files, folder_at, machine_code_from, read_manifest
from .library import Libraries
from .machine import check_machine, device_errors, open_device, release_pool
from .manifest import STATE
from .owned import Description, Owned
from .progress import Progress, progress_in, unfit_rate
from .synchronized import Synchronized, one_at_a_time
from .threads import prepare as prepare_threads
from .window import Window, dropped_on_failure

_T = TypeVar("_T")


class ExportedStep(Synchronized):
    """A compiled training step, its parameters and all that it changes, loaded from an export.

    Any thread may use it; what another does meanwhile waits for its turn.

    Parameters
    ----------
    folder : path
        What ``step.export`` or ``graphgrad.export_step`` wrote.
    device : tvm device, optional
        By default the first of the kind that the export is for.
    weights : path or mapping of str to array, optional
        Values of all parameters and statistics by name, in place of those in the export: arrays, or
        a safetensors file of them. Training then starts at step 0. A file that ``save`` wrote is
        continued instead, as by `load`.

    Attributes
    ----------
    manifest : dict
        What the export holds, as its file ``manifest.json`` says it.
    learning_rate : float
        The rate of the next steps; may be set at any time.
    steps : int
        Steps so far: calls, or windows of `accumulate` calls.

    Raises
    ------
    FolderError
        The export is missing or damaged, `folder` is no path, or the export holds no weights and
        none were given.
    MachineError
        This machine cannot run it.
    OutOfMemoryError
        The device has too little memory for the parameters and the optimizer's state.
    InputError, StateError
        The weights do not fit, or `device` is none of TVM.
    """

    steps: int
    _seed: int
    _learning_rate: float
    _rate: tvm.runtime.Tensor
    _owned: Owned
    _window: Window | None

    def __init__(
        self,
        folder: str | os.PathLike[str],
        device: tvm.runtime.Device | None = None,
        weights: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    ):
        super().__init__()
        root = folder_at(folder)
        self.manifest = read_manifest(root)
        check_files(root, self.manifest)
        check_machine(self.manifest)
        self._device = open_device(self.manifest, device)
        self._staging = Staging(self._device)
        self._described = Description.of(self.manifest)
        with machine_code_from(root, self.manifest["files"]):
            self._libraries = Libraries(root, self.manifest["entries"], self._device)
        if isinstance(weights, Mapping):
            self._start(weights)
        elif not isinstance(weights, str | os.PathLike | None):
            raise InputError(
                f"weights is a {type(weights).__name__}; give arrays by name or a path"
            )
        elif weights is not None and not state_file.is_state_file(weights):
            self._start(state_file.read_tensors(weights)[0])
        elif weights is not None or STATE in self.manifest["files"]:
            self.load(root / STATE if weights is None else weights)
        else:
            raise FolderError(
                f"{root} was exported without weights: give them as weights=, arrays by name or a "
                "safetensors file"
            )

    def __reduce__(self) -> NoReturn:
        raise ExportedStepError(
            "an exported step cannot be pickled or copied: its tensors belong to a device; save "
            "its state with save(path), and load the export and that state where it is needed"
        )

    @property
    def learning_rate(self) -> float:
        """The rate of the next steps."""
        return self._learning_rate

    @learning_rate.setter
    @one_at_a_time
    def learning_rate(self, rate: float) -> None:
        reason = unfit_rate(rate, self._trained_dtypes())
        if reason:
            raise InputError(f"learning_rate={rate!r} {reason}")
        self._rate = self._on_device("a copy of the learning rate", lambda: self._placed_rate(rate))
        self._learning_rate = float(rate)

    @property
    @one_at_a_time
    def skipped(self) -> int:
        """How many of `steps` changed nothing, because something was not finite."""
        with device_errors(self._device, "a copy of the count of updates"):
            return self.steps - self._owned.updates

    @property
    def accumulate(self) -> int:
        """How many calls, each with a micro-batch, make a step."""
        return int(self.manifest.get("accumulate", 1))

    @property
    def accumulated(self) -> int:
        """How many micro-batches the open window has; 0 between two steps."""
        return self._window.accumulated if self._window is not None else 0

    @one_at_a_time
    def discard(self) -> None:
        """Drop the micro-batches of the open window, as if they had never been."""
        if self._window is not None:
            self._window.accumulated = 0

    @property
    @one_at_a_time
    def params(self) -> Arrays:
        """Copies of all parameters, by name."""
        return self._arrays("params")

    @property
    @one_at_a_time
    def state(self) -> Arrays:
        """Copies of the running statistics, by name."""
        return self._arrays("state")

    @property
    @one_at_a_time
    def optimizer_state(self) -> dict[str, Arrays]:
        """Copies of the optimizer's buffers, by kind (such as ``momentum``) and parameter."""
        return {slot: self._arrays(slot) for slot in self._described.fills}

    def __call__(self, inputs: Any, targets: Any = None) -> float:
        """Make one step, or add a micro-batch to it.

        Parameters
        ----------
        inputs : array or mapping of str to array
            In the dtypes and one set of the shapes of the export; a single array for a model with
            one input. Arrays of numpy, or of any library with DLPack, or lists. What is on the
            device already is not copied; on a GPU it must be ready on the default stream, or be a
            tensor of PyTorch, and stay as it is until the step is done.
        targets : array
            Labels or values; left out if the loss takes none.

        Returns
        -------
        loss : float
            Of this batch and the parameters before the step.

        Raises
        ------
        InputError
            An array does not fit; nothing has changed.
        OutOfMemoryError
            The device has too little memory; nothing has changed, but where it was short for the
            end of a window alone, the window is dropped.
        MachineError
            The device failed, perhaps in an earlier step.
        """
        loss = self.enqueue(inputs, targets)
        with device_errors(self._device, "a training step"):
            return float(loss.numpy())

    @one_at_a_time
    def enqueue(self, inputs: Any, targets: Any = None) -> tvm.runtime.Tensor:
        """Make one step as a call does, but do not wait for a GPU to finish it.

        Returns
        -------
        loss : tvm.runtime.Tensor
            A scalar on the device; its ``numpy()`` waits, and raises TVM's own error if the device
            has failed.

        Raises
        ------
        InputError, OutOfMemoryError, MachineError
            As of a call.
        """
        task, window = "a training step", self._window
        loss, *new_tensors = self._on_device(task, lambda: self._step(inputs, targets))
        if window is not None:
            window.replace(new_tensors)
            if window.accumulated < self.accumulate:
                return loss
            window.accumulated = 0  # also if the end fails
            new_tensors = self._on_device(task, lambda: self._end(window))
        self._owned.replace(new_tensors)
        self.steps += 1
        return loss

    @one_at_a_time
    def evaluate(self, inputs: Any) -> Arrays:
        """The model's outputs by name, in inference form, with the current parameters.

        In an open window those of its start.

        Raises
        ------
        InputError, OutOfMemoryError, MachineError
            As of a call.
        """
        return self._on_device("an evaluation", lambda: self._evaluate(inputs))

    @one_at_a_time
    def save(self, path: str | os.PathLike[str], extra: Mapping[str, Any] | None = None) -> None:
        """Write everything that the next steps depend on to one file, as graphgrad's steps do.

        Parameters
        ----------
        path : path
            Replaced in one step: after a crash it holds the old or the new state, whole.
        extra : mapping, optional
            Facts of your own: anything that JSON can hold, and arrays of numbers.

        Raises
        ------
        InputError
            `extra` is no mapping.
        StateError
            The file cannot be written, or JSON cannot hold `extra`; what stood there before is
            untouched.
        MachineError
            The device has failed.
        """
        if extra is not None and not isinstance(extra, Mapping):
            raise InputError(f"extra is a {type(extra).__name__}; give a dict of facts by name")
        facts = {
            "optimizer": self.manifest["optimizer"],
            "learning_rate": self._learning_rate,
            "steps": self.steps,
            "skipped": self.skipped,
            "seed": self._seed,
            "extra": dict(extra or {}),
        }
        groups = {group: self._arrays(group) for group in self._owned.groups()}
        if self._window is not None and self.accumulated:
            facts |= {"accumulate": self.accumulate, "accumulated": self.accumulated}
            with device_errors(self._device, "a copy of the open window"):
                groups |= self._window.arrays()
        state_file.write(path, groups, facts)

    @one_at_a_time
    def load(self, path: str | os.PathLike[str]) -> dict[str, Any]:
        """Go back to a state that was saved, here or by graphgrad; return its ``extra``.

        Raises
        ------
        StateError
            The file is missing, damaged, or of another model or optimizer, or of an open window and
            another `accumulate`; nothing has changed.
        OutOfMemoryError
            The device has no room for it beside what it replaces; nothing has changed.
        MachineError
            The device has failed.
        """
        groups, facts = state_file.read(path)
        progress = self._progress(path, facts)
        window_types = self._described.window_types() if progress.accumulated else {}
        types = {**self._described.types(), **window_types}
        # A group without arrays leaves no trace in the file.
        groups = {group: groups.get(group, {}) for group in {**types, **groups}}
        state_file.check_match(path, groups, types)
        self._restore(groups, progress)
        return progress.extra

    def _start(self, weights: Mapping[str, Any]) -> None:
        """Begin at step 0 with given values of the parameters and statistics."""
        types = {**self._described.params, **self._described.state}
        if weights.keys() != types.keys():
            raise InputError(
                f"weights: unknown {sorted(weights.keys() - types.keys(), key=str)}, missing "
                f"{sorted(types.keys() - weights.keys())}; the names are in {MANIFEST}"
            )
        with device_errors(self._device, "a copy of the weights"):
            arrays = {name: to_array(f"weights {name!r}", weights[name]) for name in types}
        for name, ty in types.items():
            ty.check(f"weights {name!r}", arrays[name])
        facts = {**self.manifest, "steps": 0, "skipped": 0, "accumulated": 0}
        self._restore(self._described.started(arrays), self._progress(MANIFEST, facts))

    def _progress(self, path: str | os.PathLike[str], facts: Mapping[str, Any]) -> Progress:
        """The progress that the facts of a file tell, checked."""
        optimizer, dtypes = self.manifest["optimizer"], self._trained_dtypes()
        return progress_in(path, facts, optimizer, self.accumulate, dtypes)

    def _restore(self, groups: Mapping[str, Arrays], progress: Progress) -> None:
        """Go on from the arrays of a state file, which are copied to the device."""

        def placed() -> tuple[Any, ...]:
            described = self._described
            owned = Owned(described, groups, progress.updates, self._device)
            window = None
            if self.accumulate > 1:
                types, storage = described.window_types(), described.storage
                window = Window(types, groups, progress.accumulated, self._device, storage)
            # Last, as it may overwrite.
            return owned, window, self._placed_rate(progress.learning_rate)

        task = "a copy of the parameters and the optimizer's state"
        self._owned, self._window, self._rate = self._on_device(task, placed)
        self.steps, self._seed = progress.steps, progress.seed
        self._learning_rate = progress.learning_rate

    def _trained_dtypes(self) -> list[str]:
        return [ty.dtype for ty in self._described.trained]

    def _placed_rate(self, rate: float) -> tvm.runtime.Tensor:
        """The learning rate on the device; the next one overwrites it."""
        return self._staging.copy("learning rate", np.asarray(rate, "float64"))

    def _arrays(self, group: str) -> Arrays:
        """Copies of a group of what the step owns."""
        with device_errors(self._device, f"a copy of {group}"):
            return self._owned.arrays(group)

    def _on_device(self, task: str, work: Callable[[], _T]) -> _T:
        """The result of work that places arrays on the device, then perhaps computes there.

        Where memory is short, what is kept for the next arrays is given back and the work done once
        more: it has changed nothing.
        """
        if self._device.type == "cpu":
            prepare_threads()
        try:
            with device_errors(self._device, task):
                return work()
        except OutOfMemoryError:
            self._staging.clear()
        release_pool()  # not before the error is gone: it held on to what the work had taken
        try:
            with device_errors(self._device, task):
                return work()
        except OutOfMemoryError:
            self._staging.clear()  # the next batch may be a smaller one
            raise

    def _step(self, inputs: Any, targets: Any) -> Any:
        """The results of the function of a step, or of a micro-batch."""
        library, arguments = self._libraries.of(inputs, self._staging)
        arguments += library.targets(targets, self._staging)
        # A step takes the learning rate here, a micro-batch whether it opens its window.
        arguments.append(self._rate if self._window is None else self._window.opens)
        if library.seeded:
            # The two halves of a word of 64 bits: no two calls of two seeds share one.
            call_number = self.steps * self.accumulate + self.accumulated
            seed_word = np.asarray(self._seed << 32 | call_number, "int64")
            arguments.append(self._staging.copy("seed", seed_word))
        if self._window is None:
            return library.step(*arguments, *self._owned.everything())
        owned = [*self._owned.of_model(), *self._window.everything()]
        errors = device_errors(self._device, "a training step")
        with dropped_on_failure(self._window, OutOfMemoryError), errors:
            return library.step(*arguments, *owned)

    def _end(self, window: Window) -> Any:
        """The results of the function at the end of a window."""
        end = self._libraries.end
        assert end is not None
        return end(self._rate, *self._owned.replaced(), *window.everything())

    def _evaluate(self, inputs: Any) -> Arrays:
        """The outputs by name."""
        library, arguments = self._libraries.of(inputs, self._staging)
        outputs = library.evaluate(*arguments, *self._owned.of_model())[0]
        names = self.manifest["outputs"]
        if len(names) != len(outputs):
            raise FolderError(f"{MANIFEST} names {len(names)} of {len(outputs)} outputs")
        return to_arrays(dict(zip(names, outputs, strict=True)))
