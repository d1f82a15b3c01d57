"""`train_step`: one call is one step of training, compiled whole for the Relax VM."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np

from ..errors import ArgumentError, OutOfMemoryError
from ..frontend.model import Model
from ..lower.device import reported
from ..memory.budget import MemoryBudget, MemoryPlan
from ..precision.choice import Precision
from ..runtime.progress import Progress
from ..runtime.synchronized import one_at_a_time
from ..runtime.training_step import TrainingStep
from . import checkpoint
from .export import InputShapes, chosen_shapes, write_export
from .forward import Forward, LossChoice
from .inputs import Inputs
from .on_device import ModelOnDevice, Shapes, Watch
from .optimizer import SGD, Optimizer, check_rate
from .recipe import Recipe, recipe
from .state import TrainState
from .step_functions import StepFunctions
from .step_loss import ReadLoss, StepLoss
from .tensors import Arrays, as_arrays

DEFAULT_OPTIMIZER = SGD(0.1, momentum=0.9)


def train_step(
    model: Model,
    loss: LossChoice = "cross_entropy",
    optimizer: Optimizer = DEFAULT_OPTIMIZER,
    wrt: str | Sequence[str] | None = None,
    target: Any = "llvm",
    accumulate: int = 1,
    precision: str | Precision = "float32",
    memory: int | float | MemoryBudget | None = None,
    libraries: bool = True,
    cuda_graph: bool = True,
    seed: int = 0,
    rules: str = "auto",
    winograd: bool = True,
) -> TrainStep:
    """A callable that trains a model, one step a call.

    Parameters
    ----------
    model : Model
        Its parameters and statistics are copied once; the model itself never changes.
    loss : str, one of graphgrad.loss, or relax.Function
        ``"cross_entropy"`` (integer labels), ``"mse"`` or another name in `graphgrad.loss`, whose
        functions take settings; the name of a scalar output of the model; or a Relax function of
        the model's outputs and the targets that returns a scalar.
    optimizer : one of graphgrad.optim
    wrt : name or names, optional
        The parameters that train; by default all but those that are frozen, and those in
        ``model.constants``, such as masks.
    target : str, dict or Target
        Where it runs; a bare ``"llvm"`` is this host, a bare ``"cuda"`` its GPU.
    accumulate : int
        How many calls make a step: each call adds the gradients of its micro-batch, every
        `accumulate`-th one moves the parameters; see `TrainStep`.
    precision : "float32", "tf32", "bfloat16", "float16", or Precision
        With one of the last two names, convolutions and matrix products of float32 values read
        operands rounded to that dtype, and what follows them is in it; sums, means, exponentials,
        losses, statistics, parameters and the optimizer stay float32. See `Precision`, which also
        takes exceptions by node. In float16 the loss is scaled, so that small gradients do not
        become zero: `TrainStep.loss_scale`.
    memory : int, float or MemoryBudget, optional
        The most memory that a step may hold: bytes, or as a float a share of what it would hold if
        nothing was computed twice. What is short then is computed a second time in the backward
        pass, by the same kernels, so that losses and parameters are the same, bit for bit. See
        `MemoryBudget`, and `TrainStep.plan` for what is predicted.
    seed : int
        Decides, with the number of the step, what dropouts drop; from 0, below 2³¹.
    rules : "auto" or "derived"
        As of `graphgrad.vjp`.
    winograd : bool
        As of `graphgrad.compile`: False computes all convolutions in the direct form.
    libraries : bool
        As of `graphgrad.compile`: False leaves contractions on a GPU to kernels of ours.
    cuda_graph : bool
        On a GPU, from the third step on: whether all kernels of a step are queued by one launch, of
        a graph that the third has recorded. What cannot be recorded is computed as it is.

    Returns
    -------
    TrainStep

    Raises
    ------
    ArgumentError
        A value is unknown or not served yet.
    MissingGradientError
        Some ops have no gradient; the error lists all of them.
    TargetError
        There is no such target.
    DeviceError
        This machine has no device for the target, or one with too little memory.

    Examples
    --------
    >>> step = gg.train_step(gg.from_onnx("resnet.onnx"), optimizer=gg.optim.SGD(0.1, 0.9))
    >>> loss = step(images, labels)
    """
    return TrainStep(
        model, loss, optimizer, wrt, target, seed, rules, accumulate, winograd, precision, memory,
        libraries, cuda_graph,
    )  # fmt: skip


class TrainStep(ModelOnDevice, TrainingStep):
    """A compiled training step and everything it changes; made by `train_step`.

    A step whose loss, gradients or new statistics are not finite changes nothing, bit for bit. For
    each new combination of input shapes a step, or an evaluation, is compiled, and kept, up to the
    number `most_shapes`. Any thread
    may use it; what another does meanwhile, such as saving, waits for its turn.

    Parameters, statistics and buffers stay on the device, and nothing is read back unasked. On a
    GPU a call returns once the step is queued. It first waits for the steps before where it copies
    inputs from the host, or reads targets that are on the device. It asks for no such wait with
    inputs on the device and targets on the host, nor for the seed and the learning rate.

    With ``accumulate=k`` a step is a *window* of k calls, each with a micro-batch of any shape. The
    gradient is the mean of theirs, weighted by what each loss divides by: n_i / N of N examples;
    where labels are ignored or have weights, the share of those that count: a micro-batch with none
    has the loss NaN and adds nothing. A loss that is an output or a Relax function is taken for a
    mean over the first extent of the first input. A window thus equals one big batch where nothing
    couples the examples; batch norms see each micro-batch alone, and their statistics move with
    each. Until the window ends, parameters, statistics and buffers are those of its start. Whatever
    is not finite in a micro-batch discards the whole window. Gradients of half precision add up in
    float32.

    Attributes
    ----------
    learning_rate : float
        The rate of the next steps; may be set at any time.
    steps : int
        Steps so far: calls, or windows that are over.
    most_shapes : int
        How many combinations of input shapes stay compiled; may be set at any time.
    """

    _lacks_memory = OutOfMemoryError
    _tensors: TrainState

    how_to_keep = (
        "save its state with step.save(path), or all of it with step.export(path), and load that "
        "where it is needed"
    )

    def __init__(
        self,
        model: Model,
        loss: LossChoice,
        optimizer: Optimizer,
        wrt: str | Sequence[str] | None,
        target: Any,
        seed: int,
        rules: str,
        accumulate: int = 1,
        winograd: bool = True,
        precision: str | Precision = "float32",
        memory: int | float | MemoryBudget | None = None,
        libraries: bool = True,
        cuda_graph: bool = True,
    ):
        # What is kept of the model has no values: the step has its own.
        self._recipe = recipe(
            model.without_values() if isinstance(model, Model) else model,
            loss,
            optimizer,
            wrt,
            target,
            seed,
            rules,
            accumulate,
            winograd,
            precision,
            memory,
            libraries,
            cuda_graph,
        )
        super().__init__(self._recipe)
        self._seed = self._recipe.seed
        self._described = self._recipe.owned
        arrays = {**model.params, **model.state}
        self._tensors = TrainState(self._described, arrays, self._device, self.accumulate > 1)
        self._functions = self._new_functions()
        self._learning_rate = 0.0
        self.learning_rate = optimizer.learning_rate
        self.steps = 0

    @property
    def learning_rate(self) -> float:
        """The rate of the next steps."""
        return self._learning_rate

    @learning_rate.setter
    @one_at_a_time
    def learning_rate(self, rate: float) -> None:
        check_rate("learning_rate", rate)
        if rate != self._learning_rate:
            self._tensors.set_rate(rate)
        self._learning_rate = float(rate)

    @property
    def recipe(self) -> Recipe:
        """What the step was made of: its checked arguments."""
        return self._recipe

    @property
    def accumulate(self) -> int:
        """How many micro-batches make a step."""
        return self._recipe.accumulate

    @one_at_a_time
    def __call__(self, inputs: Inputs, targets: Any = None) -> StepLoss | ReadLoss:
        """Make one step, or add a micro-batch to it.

        Parameters
        ----------
        inputs : array or dict of arrays
            Numpy arrays, torch tensors or TVM tensors in the model's dtypes; a single array for a
            model with one input. Those that are on the device, contiguous and aligned are used
            where they are, of torch's on a GPU those of its default stream; others are copied.
        targets : array
            What the loss compares with: integer labels for ``cross_entropy``; left out if the loss
            takes none. Looked at on the host.

        Returns
        -------
        loss : ReadLoss or StepLoss
            Of this batch and the parameters before the step. On the CPU a float; on a GPU a number
            that stays there until it is needed, and for ``json`` and the like is given by
            ``float(loss)``. One that is never read keeps 8 KiB there. Both have ``applied``, which
            is False where the step is not over, and ``item()``.

        Raises
        ------
        InputError
            An array does not fit; nothing has changed.
        AliasError
            An array shares memory with a tensor that the step overwrites.
        OutOfMemoryError
            The device has too little memory; nothing has changed, but where it was short for the
            end of a window alone, the window is dropped.
        DeviceError
            The device failed, perhaps in an earlier step.

        What a packed function of the model raises goes through. Whatever is raised while a
        micro-batch is computed drops the open window, because a part of it may be summed up.
        """
        call_inputs = self._call_inputs(inputs)
        forward = self._forward(call_inputs)
        batch = [*call_inputs.tensors.values(), *self._targets(targets, forward)]
        self._tensors.check_overlap(call_inputs.lent)
        seed = [self._staging.queue("the seed", self._seed_word())] if forward.seeded else []
        function = self._function(call_inputs.shapes, forward)
        # Compiled before anything is added: if that fails, the window stays as it was.
        end = self._functions.end_of_window(self._compile_updating) if self.accumulate > 1 else None
        before = self._tensors.updates
        loss, is_over = self._advance(lambda: self._called(function, batch, seed), end)
        counts = (before, self._tensors.updates) if is_over else None
        step_loss = StepLoss(loss, counts, applied=is_over)
        # Already read where the host computed it: there is nothing to wait for.
        return step_loss.settle() if self._device.type == "cpu" else step_loss

    def _function(self, shapes: Shapes, forward: Forward) -> Callable[..., Any]:
        """The compiled step for some shapes."""
        return self._functions.step(shapes, forward, self._compile_updating)

    @one_at_a_time
    def plan(self, inputs: Inputs, targets: Any = None) -> MemoryPlan:
        """What a step on these arrays will hold in memory; compiles it, and runs nothing.

        Raises
        ------
        ArgumentError
            The step has no budget (``memory=`` of `train_step`), or the budget cannot be met.
        InputError
            An array does not fit.
        """
        if self._recipe.memory is None:
            raise ArgumentError("the step has no memory budget: give train_step memory=")
        call_inputs = self._call_inputs(inputs)
        forward = self._forward(call_inputs)
        self._targets(targets, forward)
        self._function(call_inputs.shapes, forward)
        plan = self._functions.plan(call_inputs.shapes)
        assert plan is not None
        return plan

    @contextmanager
    def watched(self, watch: Watch) -> Iterator[None]:
        """Have steps compiled anew inside the ``with`` block, for `watch` to see."""
        compiled, self._functions, self._watch = self._functions, self._new_functions(), watch
        try:
            yield
        finally:
            self._functions, self._watch = compiled, None

    def _new_functions(self) -> StepFunctions:
        """The functions of the step, of which none is compiled yet."""
        return StepFunctions(self._recipe, self._limit)

    @one_at_a_time
    def check(self, inputs: Inputs, targets: Any = None) -> None:
        """Raise what a step on these arrays would raise before it computes; compile nothing.

        Raises
        ------
        InputError
            An array does not fit.
        """
        self._targets(targets, self._forward(self._call_inputs(inputs)))

    @one_at_a_time
    def evaluate(self, inputs: Inputs) -> dict[str, np.ndarray]:
        """The model's outputs by name, in inference form, with the current parameters.

        In an open window those of its start.

        Raises
        ------
        InputError, DeviceError
        """
        call_inputs = self._call_inputs(inputs)
        evaluation = self._functions.evaluation(call_inputs.shapes, self._compile)
        outputs = evaluation(*call_inputs.tensors.values(), *self._tensors.of_model())[0]
        return as_arrays(dict(zip(self._model.outputs, outputs, strict=True)))

    @one_at_a_time
    def save(self, path: str | os.PathLike[str], extra: Mapping[str, Any] | None = None) -> None:
        """Write everything that the next steps depend on to one file (safetensors).

        An open window is part of it.

        Parameters
        ----------
        path : path
            Replaced in one step: after a crash it holds the old or the new state, whole.
        extra : mapping, optional
            Facts of your own, such as the position in the data: anything that JSON can hold, and
            arrays of numbers.

        Raises
        ------
        ArgumentError
            `extra` is no mapping, or JSON cannot hold it.
        CheckpointError
            The file cannot be written; what stood there before is untouched.
        """
        with checkpoint.our_errors():
            self._save_state(path, extra)

    @one_at_a_time
    def load(self, path: str | os.PathLike[str]) -> dict[str, Any]:
        """Go back to a saved state; from there, steps are bit-identical to not having stopped.

        Returns
        -------
        extra : dict
            What was given to `save`.

        Raises
        ------
        CheckpointError
            The file is missing, damaged, or of another model or optimizer, or of an open window and
            another `accumulate`; nothing has changed.
        """
        with checkpoint.our_errors():
            return self._load_state(path)

    @one_at_a_time
    def export(
        self,
        path: str | os.PathLike[str],
        shapes: InputShapes | Sequence[InputShapes] | None = None,
        weights: bool = True,
    ) -> None:
        """Write a folder that TVM's runtime alone loads and goes on training with.

        The folder holds a library for each set of input shapes, with the step and the inference,
        everything that the next steps depend on, and the Python package that loads it. See
        `graphgrad.export_step` for a target that this machine does not have.

        Parameters
        ----------
        path : path
            The folder to write, in one go. An export that stands there is replaced, anything else
            is left alone.
        shapes : mapping of str to shape, or a sequence of those, optional
            By input name; compiled now. By default all that this step keeps compiled, or those
            of a model whose shapes are static.
        weights : bool
            False leaves parameters, statistics and buffers out; whoever loads the export then
            gives parameters and statistics, and starts at step 0.

        Raises
        ------
        ArgumentError
            Shapes are missing or do not fit.
        LoweringError
            Kernels cannot be made for the target.
        ExportError
            The folder cannot be written, or there is no C compiler to link a library with.
        """
        shape_sets = chosen_shapes(self._recipe.input_types, shapes, self._functions.shapes)
        write_export(path, self._recipe, shape_sets, self._facts(), self.save if weights else None)

    @property
    def _method(self) -> str:
        return self._recipe.method

    def _reading(self, what: str) -> AbstractContextManager[None]:
        return reported(self._device, "a step")

    def _restore(self, groups: Mapping[str, Arrays], progress: Progress) -> None:
        """Overwrite the tensors where they are: two of each may be more than the device holds."""
        self._tensors.restore(groups, progress.updates, progress.accumulated)
        self._tensors.set_rate(progress.learning_rate)
