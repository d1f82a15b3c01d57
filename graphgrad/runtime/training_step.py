"""`TrainingStep`: what a step does with the tensors that it owns, wherever its functions come from.

`ExportedStep` has them from the libraries of an export, and graphgrad's `TrainStep` compiles them.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import tvm

from . import state_file
from .arrays import Arrays
from .errors import InputError
from .owned import Description, Owned
from .progress import Progress, read_for
from .results import NewResults
from .synchronized import Synchronized, one_at_a_time
from .window import Types, dropped_on_failure


class TrainingStep(Synchronized, ABC):
    """The state of a training step, and how each call changes it.

    A subclass says what computes: the functions, and where errors of the device go.

    Attributes
    ----------
    steps : int
        Steps so far: calls, or windows of `accumulate` calls.
    """

    _lacks_memory: type[Exception]
    """The error that comes before a function computes anything."""

    steps: int
    _seed: int
    _learning_rate: float
    _described: Description
    _tensors: Owned

    @property
    @abstractmethod
    def accumulate(self) -> int:
        """How many calls, each with a micro-batch, make a step."""

    @property
    @abstractmethod
    def _method(self) -> str:
        """The optimizer in words, without its learning rate."""

    @abstractmethod
    def _reading(self, what: str) -> AbstractContextManager[None]:
        """While inside, errors of the device are those of a copy of something to the host."""

    @abstractmethod
    def _restore(self, groups: Mapping[str, Arrays], progress: Progress) -> None:
        """Make the tensors those of a state file that fits; nothing changes where that fails."""

    @property
    @one_at_a_time
    def skipped(self) -> int:
        """How many of `steps` changed nothing, because something was not finite."""
        with self._reading("the count of updates"):
            return self.steps - int(self._tensors.updates.numpy())

    @property
    def accumulated(self) -> int:
        """How many micro-batches the open window has; 0 between two steps."""
        return self._tensors.accumulated

    @one_at_a_time
    def discard(self) -> None:
        """Drop the micro-batches of the open window, as if they had never been."""
        if self._tensors.window is not None:
            self._tensors.window.accumulated = 0

    @property
    @one_at_a_time
    def params(self) -> Arrays:
        """Copies of all parameters, by name."""
        return self._arrays_of("params")

    @property
    @one_at_a_time
    def state(self) -> Arrays:
        """Copies of the running statistics, by name."""
        return self._arrays_of("state")

    @property
    @one_at_a_time
    def optimizer_state(self) -> dict[str, Arrays]:
        """Copies of the optimizer's buffers, by kind (such as ``momentum``) and parameter."""
        return {slot: self._arrays_of(slot) for slot in self._described.fills}

    @property
    @one_at_a_time
    def loss_scale(self) -> float:
        """What the next step multiplies its loss by, and divides its gradients; 1 unless float16.

        It doubles after 2,000 steps in a row in which all was finite, and is halved by each step in
        which something was not, which changes nothing else.
        """
        with self._reading("the loss scale"):
            return float(next((scale.numpy() for scale in self._tensors.loss_scale()), 1.0))

    def _arrays_of(self, group: str) -> Arrays:
        """Copies of a group of what the step owns."""
        with self._reading(group):
            return self._tensors.arrays_of(group)

    def _save_state(self, path: str | os.PathLike[str], extra: Mapping[str, Any] | None) -> None:
        """Write everything that the next steps depend on to one file.

        Raises
        ------
        InputError, FactsError
            `extra` is no mapping, or JSON cannot hold it.
        StateError
            The file cannot be written; what stood there before is untouched.
        """
        if extra is not None and not isinstance(extra, Mapping):
            raise InputError(f"extra is a {type(extra).__name__}; give a dict of facts by name")
        facts = {**self._facts(), "extra": dict(extra or {})}
        with self._reading("all that the next steps depend on"):
            groups = self._tensors.arrays(with_window=self.accumulated > 0)
        state_file.write(path, groups, facts)

    def _load_state(self, path: str | os.PathLike[str]) -> dict[str, Any]:
        """Go back to a state that was saved; return its ``extra``.

        Raises
        ------
        StateError
            As of `read_for`; nothing has changed.
        """
        dtypes = self._trained_dtypes()
        first_scale = self._described.first_scale()
        groups, progress = read_for(
            path, self._types, self._method, self.accumulate, dtypes, first_scale
        )
        self._continue(groups, progress)
        return progress.extra

    def _continue(self, groups: Mapping[str, Arrays], progress: Progress) -> None:
        """Go on from the arrays of a state file."""
        self._restore(groups, progress)  # first: it may fail
        self.steps, self._seed = progress.steps, progress.seed
        self._learning_rate = progress.learning_rate

    def _types(self, with_window: bool) -> Types:
        """The types of what the step owns, by group."""
        described = self._described
        return {**described.types(), **(described.window_types() if with_window else {})}

    def _trained_dtypes(self) -> list[str]:
        return [ty.dtype for ty in self._described.trained]

    def _facts(self) -> dict[str, Any]:
        """The facts of a state file: where training stands, and what decides its next steps."""
        window = {"accumulate": self.accumulate, "accumulated": self.accumulated}
        return {
            "optimizer": self._method,
            "learning_rate": self._learning_rate,
            "steps": self.steps,
            "skipped": self.skipped,
            "seed": self._seed,
            **(window if self.accumulated else {}),
        }

    def _seed_word(self) -> np.ndarray:
        """What the next call takes for a seed."""
        # The two halves of a word of 64 bits: no two calls of two seeds share one.
        call_number = self.steps * self.accumulate + self.accumulated
        return np.asarray(self._seed << 32 | call_number, "int64")

    def _called(
        self,
        function: Callable[..., tuple[tvm.runtime.Tensor, NewResults]],
        batch: Sequence[tvm.runtime.Tensor],
        seed: Sequence[tvm.runtime.Tensor],
    ) -> tuple[tvm.runtime.Tensor, NewResults]:
        """Call the function of a step, or of a micro-batch, which is added to its window.

        Parameters
        ----------
        function : callable
        batch : sequence of tensor
            Inputs and targets.
        seed : sequence of tensor
            `_seed_word` on the device; none for a function that takes no seed.

        Returns
        -------
        loss : tensor
        new_results : NewResults
            What is still to be taken: of a micro-batch nothing.
        """
        tensors, window = self._tensors, self._tensors.window
        # A step takes the learning rate here, a micro-batch whether it opens its window.
        if window is None:
            return function(*batch, tensors.rate, *seed, *tensors.everything())
        owned = [*tensors.of_model(), *window.everything()]
        with dropped_on_failure(window, self._lacks_memory):
            loss, sums = function(*batch, window.opens, *seed, *tensors.loss_scale(), *owned)
            tensors.add(sums)
        return loss, {}

    def _advance(
        self,
        call: Callable[[], tuple[tvm.runtime.Tensor, NewResults]],
        end: Callable[..., NewResults] | None,
    ) -> tuple[tvm.runtime.Tensor, bool]:
        """Make a step, or add a micro-batch to it.

        Parameters
        ----------
        call : callable
            Places a batch on the device, and returns what `_called` does.
        end : callable or None
            The function that ends a window of several micro-batches.

        Returns
        -------
        loss : tensor
        is_over : bool
            Whether the step is.
        """
        tensors, window = self._tensors, self._tensors.window
        loss, new_results = call()
        if window is not None and end is not None:
            if window.accumulated < self.accumulate:
                return loss, False
            window.accumulated = 0  # also if the end fails
            new_results = end(tensors.rate, *tensors.replaced(), *window.everything())
        tensors.replace(new_results)
        self.steps += 1
        return loss, True
