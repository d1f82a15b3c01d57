"""The checked arguments of `value_and_grad`, `train_step` and `export_step`.

An `Objective` says what is differentiated, a `Recipe` what a training step is, both before there
are shapes of inputs or a device.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import tvm

from ..autodiff.activity import analyze, select
from ..errors import ArgumentError
from ..frontend.model import Model
from ..ir.write import write_program
from ..layout.choice import Layout, choose_storage, layout_for
from ..lower.attention import attention_kernels
from ..lower.cuda.library.select import absence as library_absence
from ..lower.cuda.tensor_cores.kernel import has_tensor_cores
from ..lower.pipeline import lower
from ..lower.target import target as resolve_target
from ..memory.allocation import allocated_bytes
from ..memory.budget import FunctionBudget, MemoryBudget, budget_of
from ..ops.attention_pattern import fuse_attention
from ..precision.choice import FULL, Precision, precision_of
from ..registry.rule import has_users_rule
from ..runtime.owned import Description
from .accumulate import END_OF_WINDOW, MICRO_BATCH, build_end_of_window, build_micro_batch
from .forward import FORWARD, Forward, InlinedModel, LossChoice, ResolvedLoss, inline_model
from .groups import by_parameter
from .inputs import check_seed, check_switch, check_types, input_types, names_in, owned_types
from .loss import LOSSES
from .loss_scale import INITIAL, LossScale
from .optimizer import Optimizer
from .state import describe, sizes_of
from .update import STEP, build_step

WrtNames = str | Sequence[str] | None


@dataclass(frozen=True, kw_only=True)
class Objective:
    """What is differentiated with respect to what, and where: checked arguments.

    Attributes
    ----------
    inlined : InlinedModel
        The model, as it is differentiated.
    input_types : dict of str to relax.TensorType
    loss : ResolvedLoss
    wrt : list of str
        Names of values, as they were given.
    wrt_variables : list of str
        Their names in the program: an ONNX name may be that of an equal value.
    target : Target
    layout : Layout
        In which the functions compute, and take and return what belongs to parameters.
    winograd : bool
        As of `graphgrad.compile`.
    libraries : bool
        Whether libraries compute on the target what they compute faster; False where there are
        none.
    cuda_graph : bool
        As of `train_step`.
    precision : Precision
    memory : MemoryBudget or None
    """

    inlined: InlinedModel
    input_types: dict[str, Any]
    loss: ResolvedLoss
    wrt: list[str]
    wrt_variables: list[str]
    target: tvm.target.Target
    layout: Layout
    winograd: bool
    libraries: bool
    cuda_graph: bool
    precision: Precision
    memory: MemoryBudget | None

    @property
    def model(self) -> Model:
        """The model."""
        return self.inlined.model

    def forward(self, shapes: Iterable[Sequence[int]]) -> Forward:
        """The forward pass with the loss, for shapes of the inputs."""
        return self.inlined.forward(self.loss, shapes, self.layout, self.wrt_variables)

    def with_attention(self, forward: Forward, is_trained: bool = True) -> Forward:
        """A forward pass that has attention as an op where the target has kernels of it.

        To be differentiated in reverse mode, or not at all: derivatives of the op's own gradient
        write all scores. Within a budget of memory it is an op wherever it can be, and not only
        where that takes less time.
        """
        wrt = select(forward.program, self.wrt_variables) if is_trained else ()
        kernels = attention_kernels(self.target, self.libraries, self.memory is not None)
        program = fuse_attention(forward.program, kernels, wrt, wrt, has_users_rule)
        return dataclasses.replace(forward, program=program)

    def budget(self, function: str, beside: int = 0) -> FunctionBudget | None:
        """The budget of a function, as of `FunctionBudget`; None where there is none."""
        return None if self.memory is None else FunctionBudget(function, self.memory, beside)


@dataclass(frozen=True, kw_only=True)
class Recipe(Objective):
    """The arguments of `train_step`, checked.

    `wrt` names the parameters that train, in the model's order.

    Attributes
    ----------
    optimizer : Optimizer
    seed : int
    accumulate : int
        Micro-batches a step, at least 1.
    """

    optimizer: Optimizer
    seed: int
    accumulate: int

    @property
    def method(self) -> str:
        """The optimizer in words, without its learning rate, which may change any time."""
        fields = dataclasses.asdict(self.optimizer)
        settings = ", ".join(
            f"{name}={value!r}" for name, value in fields.items() if name != "learning_rate"
        )
        return f"{type(self.optimizer).__name__}({settings})"

    @property
    def owned(self) -> Description:
        """The types of what a step owns."""
        params, state, orders = self.model.params, self.model.state, self.layout.storage
        scale = INITIAL if self.precision.scales_loss else None
        return describe(params, state, self.wrt, self.optimizer.slots, orders, scale)

    @property
    def step_name(self) -> str:
        """The name of the function in what `step` returns."""
        return STEP if self.accumulate == 1 else MICRO_BATCH

    def step(self, forward: Forward) -> tvm.IRModule:
        """The computation of a call, on top of a forward pass: a step, or a micro-batch of it."""
        scale = self._new_scale()
        forward = self.with_attention(forward)
        if self.accumulate == 1:
            return build_step(forward, self.wrt, self.optimizer, scale)
        return build_micro_batch(forward, self.wrt, scale)

    def step_budget(self) -> FunctionBudget | None:
        """The budget of the function in what `step` returns."""
        if self.memory is None or self.accumulate == 1:
            return self.budget(self.step_name)
        # A micro-batch is not given the optimizer's buffers, which are there all the same; and the
        # memory of the function that ends a window stays in the pool of the virtual machine.
        owned = self.owned
        buffers = sum(sizes_of(owned.trained)) * len(owned.fills)
        return self.budget(self.step_name, buffers + self._end_of_window_bytes)

    @cached_property
    def _end_of_window_bytes(self) -> int:
        """What the function that ends a window allocates, whatever the shapes of a step."""
        end = lower(self.end_of_window(), self.target)
        return allocated_bytes(end)[END_OF_WINDOW]

    def end_of_window(self) -> tvm.IRModule:
        """The update that follows the last micro-batch of a step."""
        return build_end_of_window(
            self.model, self.wrt, self.optimizer, self.layout, self._new_scale()
        )

    def _new_scale(self) -> LossScale | None:
        """The variables of a function that scales its loss, or divides by the scale."""
        return LossScale() if self.precision.scales_loss else None

    def evaluation(
        self, shapes: Iterable[Sequence[int]], beside: tvm.IRModule | None = None
    ) -> tvm.IRModule:
        """The forward pass in inference form, without a loss, for shapes of the inputs.

        Parameters
        ----------
        shapes : iterable of shapes
        beside : IRModule, optional
            The module to add it to; by default, one of the kernels that it may call.
        """
        no_loss = ResolvedLoss(self.model, None)
        forward = self._inference.forward(no_loss, shapes, self.layout)
        forward = self.with_attention(forward, is_trained=False)
        return write_program(forward.program, FORWARD, beside)

    @cached_property
    def _inference(self) -> InlinedModel:
        """The inference form of the model, which evaluations for all shapes share."""
        return inline_model(self.model, False).for_layout(self.layout).in_precision(self.precision)


def objective(
    model: Model,
    loss: LossChoice,
    wrt: WrtNames,
    target: Any,
    rules: str,
    winograd: bool,
    precision: Any,
    memory: Any,
    training: bool | None,
    names: Callable[[Model, WrtNames], list[str]],
    libraries: bool = True,
    cuda_graph: bool = False,
) -> Objective:
    """Check the arguments that `train_step` and `value_and_grad` share, which document them.

    Parameters
    ----------
    model, loss, wrt, target, rules, winograd, precision, memory, training
    names : callable
        Given the model and `wrt`, returns the names of values.
    libraries, cuda_graph : bool

    Raises
    ------
    ArgumentError
        A value is unknown, or is none that is served.
    NotDifferentiableError
        A value that `wrt` names is no float tensor.
    MissingGradientError
        Some ops of the model or of its loss have no gradient; all of the model's are listed.
    TargetError
        There is no such target.
    """
    winograd = check_switch("winograd", winograd)
    libraries = check_switch("libraries", libraries)
    cuda_graph = check_switch("cuda_graph", cuda_graph)
    precision, budget = precision_of(precision), budget_of(memory)
    types = input_types(model)
    function = ResolvedLoss(model, loss)
    value_names = names(model, wrt)
    inlined = inline_model(model, training, rules)
    asked = select(inlined.program, value_names)
    variables = [var.name for var in asked]
    resolved_target = resolve_target(target)
    libraries = libraries and library_absence(resolved_target) is None
    rounds = precision.dtype != FULL and has_tensor_cores(resolved_target)
    layout = layout_for(resolved_target, on_tensor_cores=libraries or rounds)
    inlined = inlined.for_layout(layout, asked).in_precision(precision, keep=variables)
    values = select(inlined.program, variables)
    analyze(inlined.program, values)  # raises: all that is missing, before anything is compiled
    function.check_gradient(rules)
    return Objective(
        inlined=inlined,
        input_types=types,
        loss=function,
        wrt=value_names,
        wrt_variables=variables,
        target=resolved_target,
        layout=layout,
        winograd=winograd,
        libraries=libraries,
        cuda_graph=cuda_graph,
        precision=precision,
        memory=budget,
    )


def recipe(
    model: Model,
    loss: LossChoice,
    optimizer: Optimizer,
    wrt: WrtNames,
    target: Any,
    seed: int,
    rules: str,
    accumulate: int = 1,
    winograd: bool = True,
    precision: Any = "float32",
    memory: Any = None,
    libraries: bool = True,
    cuda_graph: bool = True,
) -> Recipe:
    """Check the arguments of `train_step`, which documents them.

    Raises
    ------
    ArgumentError, InputError, TargetError, NotDifferentiableError, MissingGradientError
    """
    seed = check_seed(seed)
    accumulate = check_accumulate(accumulate)
    if loss is None:
        raise ArgumentError(f"train_step needs a loss: one of {sorted(LOSSES)}, for example")
    if not isinstance(optimizer, Optimizer):
        raise ArgumentError(f"optimizer={optimizer!r} is none of graphgrad.optim")
    shared = objective(
        model, loss, wrt, target, rules, winograd, precision, memory, True, _parameters_to_train,
        libraries, cuda_graph,
    )  # fmt: skip
    # A step holds its parameters, from here on in the order of axes in which convolutions read
    # them; `value_and_grad` reads the model's at each call, as they are.
    layout = choose_storage(shared.layout, shared.inlined.program)
    _check_epsilons(model, optimizer, shared.wrt)
    # They may have been replaced since the model was made.
    check_types({**model.params, **model.state}, owned_types(model), "parameter")
    settings = {**vars(shared), "layout": layout}
    return Recipe(**settings, optimizer=optimizer, seed=seed, accumulate=accumulate)


def _check_epsilons(model: Model, optimizer: Optimizer, trained: Sequence[str]) -> None:
    """Raise if what keeps an optimizer from dividing by 0 is 0 itself, in a parameter's dtype."""
    ranks = {name: model.params[name].ndim for name in trained}
    for name, (settings, _) in by_parameter(optimizer, ranks).items():
        epsilon, dtype = getattr(settings, "epsilon", 0.0), model.params[name].dtype
        # An epsilon that was given as 0 is the user's choice; one that rounds to 0 is not.
        if epsilon and not np.array(epsilon).astype(dtype):
            raise ArgumentError(
                f"epsilon={epsilon} of {type(settings).__name__} is 0 in {dtype}, the dtype of "
                f"{name!r}, so that a small gradient would be divided by 0; give a larger one, "
                "such as 1e-4"
            )


def check_accumulate(count: Any) -> int:
    """A number of micro-batches, after checking that it is a whole number from 1.

    Raises
    ------
    ArgumentError
    """
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1:
        raise ArgumentError(
            f"accumulate={count!r} must be a whole number, at least 1: the micro-batches of a step"
        )
    return int(count)


def _parameters_to_train(model: Model, wrt: WrtNames) -> list[str]:
    """The names of the parameters that train, in the model's order."""
    trainable = model.trainable()
    if wrt is None:
        if not trainable:
            raise ArgumentError("the model has no parameter that can train")
        return trainable
    wrt = names_in(wrt)
    unknown = [name for name in wrt if name not in model.params]
    if unknown:
        raise ArgumentError(
            f"wrt: the model has no parameter(s) {unknown}; it has {list(model.params)}"
        )
    frozen = [name for name in wrt if name in model.frozen]
    if frozen:
        raise ArgumentError(
            f"wrt: the parameter(s) {frozen} are frozen, by freeze or constants=, or hold no floats"
        )
    if not wrt or len(set(wrt)) != len(wrt):
        raise ArgumentError("wrt: give at least one parameter, and each once")
    return [name for name in model.params if name in set(wrt)]
