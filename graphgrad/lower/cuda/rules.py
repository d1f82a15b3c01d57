"""The rules that schedule a PrimFunc for a GPU, in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import tvm
from tvm import tirx

from .parallel import bind_parallel_loops, launch_statements
from .stages import one_thread_per_element, tile_contractions
from .time_loops import launch_steps


@dataclass(frozen=True)
class Rule:
    """A way to schedule a whole PrimFunc.

    Attributes
    ----------
    name : str
        As the compile report prints it.
    apply : function
        Takes a PrimFunc and a target; returns the PrimFunc with its loops bound to threads, or None
        if its structure is not what the rule is for.
    """

    name: str
    apply: Callable[[tirx.PrimFunc, tvm.target.Target], tirx.PrimFunc | None]


def scheduling_rules(tf32: bool = False) -> tuple[Rule, ...]:
    """Schedules for GPUs: each PrimFunc takes the first rule whose result is proved to run there.

    ``tiles`` and ``elements`` are for kernels made of stages, with and without contractions that
    are worth tiles; ``steps`` for loops over time around such; ``parallel`` and ``serial`` for what
    is written by hand, with and without parallel loops.

    Parameters
    ----------
    tf32 : bool
        Whether contractions of float32 may round their factors to TF32.
    """
    return (
        Rule("tiles", partial(tile_contractions, tf32=tf32)),
        Rule("elements", one_thread_per_element),
        Rule("steps", partial(launch_steps, tf32=tf32)),
        Rule("parallel", bind_parallel_loops),
        Rule("serial", launch_statements),
    )
