"""`ExportedStep`: a training step, loaded from an export."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, NoReturn, TypeVar

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
from .results import NewResults, split_loss
from .synchronized import one_at_a_time
from .threads import prepare as prepare_threads
from .training_step import TrainingStep

_T = TypeVar("_T")


class ExportedStep(TrainingStep):
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
    cuda_graph : bool
        On a GPU, whether all kernels of a step are queued by one launch; may be set at any time.

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

    _lacks_memory = OutOfMemoryError

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
        self._on_device("a copy of the learning rate", lambda: self._tensors.set_rate(rate))
        self._learning_rate = float(rate)

    @property
    def cuda_graph(self) -> bool:
        """Whether a step on a GPU is queued by one launch, of a graph that is recorded before.

        May be set at any time. A step that was exported without it, or cannot be recorded, is
        computed as it is.
        """
        return self._libraries.arena.records

    @cuda_graph.setter
    @one_at_a_time
    def cuda_graph(self, records: bool) -> None:
        if not isinstance(records, bool):
            raise InputError(f"cuda_graph={records!r}: give True or False")
        self._libraries.arena.records = records

    @property
    def accumulate(self) -> int:
        """How many calls, each with a micro-batch, make a step."""
        return int(self.manifest.get("accumulate", 1))

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
        task = "a training step"
        call = lambda: self._on_device(task, lambda: self._step(inputs, targets))  # noqa: E731
        return self._advance(call, self._end)[0]

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
    def release_memory(self) -> None:
        """Give back the memory that is kept for the next steps, and graphs recorded with it.

        Parameters, statistics and the optimizer's buffers stay. The next step takes it again.
        """
        self._staging.clear()
        self._libraries.arena.clear()
        release_pool()

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
        self._save_state(path, extra)

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
        return self._load_state(path)

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
        dtypes = self._trained_dtypes()
        progress = progress_in(MANIFEST, facts, self._method, self.accumulate, dtypes)
        self._continue(self._described.started(arrays), progress)

    @property
    def _method(self) -> str:
        return str(self.manifest["optimizer"])

    def _reading(self, what: str) -> AbstractContextManager[None]:
        return device_errors(self._device, f"a copy of {what}")

    def _restore(self, groups: Mapping[str, Arrays], progress: Progress) -> None:
        """Copy the arrays of a state file to the device, beside what they replace."""

        def placed() -> Owned:
            described, rate = self._described, progress.learning_rate
            owned = Owned(described, groups, self._device, progress.updates, rate)
            if self.accumulate > 1:
                owned.open_window(groups, progress.accumulated)
            return owned

        task = "a copy of the parameters and the optimizer's state"
        self._tensors = self._on_device(task, placed)

    def _on_device(self, task: str, work: Callable[[], _T]) -> _T:
        """The result of work that places arrays on the device, then perhaps computes there.

        Where memory is short, what is kept for the next arrays is given back and the work done once
        more: it has changed nothing.
        """
        if self._device.type == "cpu":
            prepare_threads()
        with contextlib.suppress(OutOfMemoryError), device_errors(self._device, task):
            return work()
        self.release_memory()  # the error is gone, which held on to what the work had taken
        try:
            with device_errors(self._device, task):
                return work()
        except OutOfMemoryError:
            self._staging.clear()  # the next batch may be a smaller one
            raise

    def _step(self, inputs: Any, targets: Any) -> tuple[tvm.runtime.Tensor, NewResults]:
        """The loss and the new tensors of a step, or of a micro-batch."""
        library, batch = self._libraries.of(inputs, self._staging)
        batch += library.targets(targets, self._staging)
        seed = [self._staging.queue("seed", self._seed_word())] if library.seeded else []

        def function(*arguments: Any) -> tuple[tvm.runtime.Tensor, NewResults]:
            # Here, because a lack of memory is to be known from what happens later.
            with device_errors(self._device, "a training step"):
                return split_loss(library.step(*arguments))

        return self._called(function, batch, seed)

    def _end(self, *arguments: Any) -> NewResults:
        """The new tensors of the function at the end of a window."""
        end = self._libraries.end
        assert end is not None
        return self._on_device("a training step", lambda: end(*arguments))

    def _evaluate(self, inputs: Any) -> Arrays:
        """The outputs by name."""
        library, arguments = self._libraries.of(inputs, self._staging)
        outputs = library.evaluate(*arguments, *self._tensors.of_model())[0]
        names = self.manifest["outputs"]
        if len(names) != len(outputs):
            raise FolderError(f"{MANIFEST} names {len(names)} of {len(outputs)} outputs")
        return to_arrays(dict(zip(names, outputs, strict=True)))
