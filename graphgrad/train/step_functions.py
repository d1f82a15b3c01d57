"""The compiled functions of a step, by the shapes of its inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import tvm

from .accumulate import END_OF_WINDOW
from .forward import FORWARD, Forward
from .on_device import Shapes
from .recipe import Recipe

NewResults: TypeAlias = dict[int, tvm.runtime.Tensor]
"""What a function returns, by position, without the arguments that it has overwritten."""


class StepFunctions:
    """The functions of a step, each compiled when it is first asked for.

    Parameters
    ----------
    recipe : Recipe
    compile_function : callable
        Compiles a function, given the module, the function's name there, and what errors of the
        device call its work.
    compile_updating : callable
        Likewise, for a function that overwrites arguments; it returns `NewResults`.
    """

    def __init__(
        self,
        recipe: Recipe,
        compile_function: Callable[[tvm.IRModule, str, str], Callable[..., Any]],
        compile_updating: Callable[[tvm.IRModule, str, str], Callable[..., NewResults]],
    ):
        self._recipe = recipe
        self._compile_function = compile_function
        self._compile_updating = compile_updating
        self._steps: dict[Shapes, Callable[..., tuple[Any, NewResults]]] = {}
        self._evaluations: dict[Shapes, Callable[..., Any]] = {}
        self._end: Callable[..., NewResults] | None = None

    @property
    def shapes(self) -> list[Shapes]:
        """Shapes of inputs that something is compiled for, those of steps first."""
        return list(dict.fromkeys([*self._steps, *self._evaluations]))

    def step(self, shapes: Shapes, forward: Forward) -> Callable[..., tuple[Any, NewResults]]:
        """A step, or a micro-batch of it, on top of the forward pass for some shapes.

        It returns the loss, and its other results by their position behind it.
        """
        if shapes not in self._steps:
            mod = self._recipe.step(forward)
            name = self._recipe.step_name
            compiled = self._compile_updating(mod, name, "a training step")
            self._steps[shapes] = lambda *arguments: _split(compiled(*arguments))
        return self._steps[shapes]

    def evaluation(self, shapes: Shapes) -> Callable[..., Any]:
        """The inference form for some shapes."""
        if shapes not in self._evaluations:
            mod = self._recipe.evaluation(shapes)
            self._evaluations[shapes] = self._compile_function(mod, FORWARD, "an evaluation")
        return self._evaluations[shapes]

    def end_of_window(self) -> Callable[..., NewResults]:
        """The function that follows the last micro-batch of a step: the update."""
        if self._end is None:
            mod = self._recipe.end_of_window()
            self._end = self._compile_updating(mod, END_OF_WINDOW, "the end of a training step")
        return self._end


def _split(results: NewResults) -> tuple[Any, NewResults]:
    """The loss, and the other results by their position behind it.

    The loss is never dropped from the results: it takes the place of no argument.
    """
    loss = results.pop(0)
    return loss, {position - 1: tensor for position, tensor in results.items()}
