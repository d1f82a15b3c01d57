"""Who competes in `kernels.py`, and the processes of all."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernel_cases import Case, Convolution
from layer_cases import LayerCase
from process import THREAD_VARIABLES, ContenderError, Stepping

import graphgrad as gg

_WORKER = Path(__file__).with_name("kernel_worker.py")
_OURS, _TORCH = "contenders.kernels_ours", "contenders.kernels_torch"

OURS, DIRECT, DERIVED = "graphgrad", "graphgrad direct", "graphgrad derived"
REFERENCE, CONTIGUOUS = "torch", "torch NCHW"
"""`REFERENCE` is torch with channels_last tensors, which it is fastest with."""


@dataclass(frozen=True)
class Entrant:
    """A contender that times kernels.

    Attributes
    ----------
    name, module : str
    threads : int
    options : dict
        As the module's ``prepare`` takes them.
    """

    name: str
    module: str
    threads: int
    options: dict[str, Any] = field(default_factory=dict)

    def competes(self, case: Case, derived: bool) -> bool:
        """Return whether it has something of its own to say about a case.

        Parameters
        ----------
        case : Case
        derived : bool
            Whether the case compares derived gradients with those of rules.
        """
        if self.name.startswith(DIRECT):
            return case.work.may_be_winograd and not derived
        if self.name.startswith(DERIVED):
            return derived
        if self.name.startswith(CONTIGUOUS):
            return isinstance(case.work, Convolution) and not derived
        return True


def entrants(threads: int, scaling: bool) -> list[Entrant]:
    """Return all contenders.

    Parameters
    ----------
    threads : int
    scaling : bool
        Whether one thread is timed as well.
    """
    found = [
        Entrant(OURS, _OURS, threads),
        Entrant(DERIVED, _OURS, threads, {"rules": "derived"}),
        Entrant(REFERENCE, _TORCH, threads, {"channels_last": True}),
        Entrant(CONTIGUOUS, _TORCH, threads),
    ]
    if "winograd" in inspect.signature(gg.compile).parameters:
        found.insert(1, Entrant(DIRECT, _OURS, threads, {"winograd": False}))
    if scaling and threads > 1:
        one = [e for e in found if e.name in (OURS, REFERENCE)]
        found += [Entrant(f"{e.name}, 1 thread", e.module, 1, e.options) for e in one]
    return found


class Entrants:
    """The processes of contenders, each started when it is first needed.

    Parameters
    ----------
    competing : iterable of Entrant
    clock : str
        The function of `time` that they time with.

    Attributes
    ----------
    all : list of Entrant
    """

    def __init__(self, competing: Iterable[Entrant], clock: str):
        self.all = list(competing)
        self._clock = clock
        self._processes: dict[str, Stepping] = {}

    def prepared(self, entrant: Entrant, case: Case | LayerCase, result: Path) -> Stepping:
        """Return the process of a contender, whose kernel is a case; its values are in a file.

        Raises
        ------
        ContenderError
            It cannot make that kernel, or has died of it.
        """
        try:
            answer = self._process(entrant).ask({"case": case.to_json(), "result": str(result)})
        except ContenderError:
            self.forget([entrant.name])
            raise
        if "failed" in answer:
            raise ContenderError(answer["failed"])
        return self._processes[entrant.name]

    def forget(self, names: Iterable[str]) -> None:
        """End the processes of contenders; they begin anew when they are needed again."""
        for name in names:
            if name in self._processes:
                self._processes.pop(name).close()

    def close(self) -> None:
        """End all processes."""
        self.forget(list(self._processes))

    def _process(self, entrant: Entrant) -> Stepping:
        if entrant.name not in self._processes:
            options = json.dumps(entrant.options)
            what = (entrant.module, options, str(entrant.threads), self._clock)
            command = [sys.executable, str(_WORKER), *what]
            environment = dict.fromkeys(THREAD_VARIABLES, str(entrant.threads))
            self._processes[entrant.name] = Stepping(entrant.name, command, environment)
        return self._processes[entrant.name]
