"""The compiled functions of a step, by the shapes of its inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import tvm

from ..memory.budget import FunctionBudget, MemoryPlan
from ..runtime.results import NewResults, split_loss
from .accumulate import END_OF_WINDOW
from .forward import FORWARD, Forward
from .on_device import Shapes
from .recent import Limit, Recent
from .recipe import Recipe

Compile: TypeAlias = Callable[[tvm.IRModule, str, str], Callable[..., Any]]
"""Compiles a function, given the module, its name there, and what errors of the device call its
work."""

CompileUpdating: TypeAlias = Callable[..., Callable[..., NewResults]]
"""Likewise, a function that overwrites arguments; it returns `NewResults`. May be given a
`FunctionBudget` too."""


class StepFunctions:
    """The functions of a step, each compiled when it is first asked for.

    Whoever asks gives the function that compiles: one that was kept here would hold its owner.

    Parameters
    ----------
    recipe : Recipe
    limit : Limit
        How many are kept, by shapes, of steps and of evaluations each.
    """

    def __init__(self, recipe: Recipe, limit: Limit):
        self._recipe = recipe
        self._steps: Recent[Shapes, Callable[..., tuple[Any, NewResults]]] = Recent(limit)
        self._budgets: Recent[Shapes, FunctionBudget | None] = Recent(limit)
        self._evaluations: Recent[Shapes, Callable[..., Any]] = Recent(limit)
        self._end: Callable[..., NewResults] | None = None

    @property
    def shapes(self) -> list[Shapes]:
        """Shapes of inputs that something is compiled for, those of steps first."""
        return list(dict.fromkeys([*self._steps.keys(), *self._evaluations.keys()]))

    def step(
        self, shapes: Shapes, forward: Forward, compile_updating: CompileUpdating
    ) -> Callable[..., tuple[Any, NewResults]]:
        """A step, or a micro-batch of it, on top of the forward pass for some shapes.

        It returns the loss, and its other results by their position behind it.
        """

        def make() -> Callable[..., tuple[Any, NewResults]]:
            mod = self._recipe.step(forward)
            budget = self._budgets.get(shapes, self._recipe.step_budget)
            compiled = compile_updating(mod, self._recipe.step_name, "a training step", budget)
            return lambda *arguments: split_loss(compiled(*arguments))

        return self._steps.get(shapes, make)

    def plan(self, shapes: Shapes) -> MemoryPlan | None:
        """The plan of memory of a step that is compiled; None where there is no budget."""
        budget = self._budgets.get(shapes, self._recipe.step_budget)
        return None if budget is None else budget.plan

    def evaluation(self, shapes: Shapes, compile_function: Compile) -> Callable[..., Any]:
        """The inference form for some shapes."""

        def make() -> Callable[..., Any]:
            return compile_function(self._recipe.evaluation(shapes), FORWARD, "an evaluation")

        return self._evaluations.get(shapes, make)

    def end_of_window(self, compile_updating: CompileUpdating) -> Callable[..., NewResults]:
        """The function that follows the last micro-batch of a step: the update."""
        if self._end is None:
            mod = self._recipe.end_of_window()
            self._end = compile_updating(mod, END_OF_WINDOW, "the end of a training step")
        return self._end
