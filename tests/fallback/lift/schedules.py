"""Random schedules: kernels as somebody tunes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import ScheduleError

from tests.fallback.choices import Choices


def scheduled(func: Any, choices: Choices, steps: int = 6) -> tuple[Any, list[str]]:
    """Return a function after random steps of a schedule, and the names of those that fitted."""
    try:
        schedule = Schedule(tvm.IRModule({"main": func}))
    except RuntimeError:  # not every function that TVM makes is one that its schedules take
        return func, []
    done = []
    for _ in range(choices.integer(1, steps)):
        blocks = _blocks(schedule)
        if not blocks:
            break
        step = choices.pick(STEPS)
        trial = schedule.copy()
        name = choices.pick(blocks)
        try:
            step(trial, trial.get_sblock(name), choices)
        except (ScheduleError, RuntimeError, ValueError, LookupError):
            continue
        schedule = trial
        done.append(step.__name__)
    return schedule.mod["main"], done


def _blocks(schedule: Schedule) -> list[str]:
    try:
        root = schedule.get_sblock("root")
    except (ScheduleError, RuntimeError):
        return []
    names = [str(schedule.get(block).name_hint) for block in schedule.get_child_blocks(root)]
    return [name for name in names if name]


def _loop(schedule: Schedule, block: Any, choices: Choices) -> Any:
    return choices.pick(list(schedule.get_loops(block)))


def _begins_at_zero(schedule: Schedule, block: Any) -> bool:
    """Return whether all loops do; TVM's `blockize` and `rfactor` take it for granted."""
    return all(int(schedule.get(loop).min) == 0 for loop in schedule.get_loops(block))


def split(schedule: Schedule, block: Any, choices: Choices) -> None:
    """Split a loop, with a remainder or without."""
    factors = choices.pick([[None, 2], [None, 3], [2, None], [None, 2, 2], [None, 1]])
    schedule.split(_loop(schedule, block, choices), factors)


def fuse(schedule: Schedule, block: Any, choices: Choices) -> None:
    """Fuse neighbors."""
    loops = list(schedule.get_loops(block))
    first = choices.integer(0, len(loops) - 2)
    schedule.fuse(*loops[first : first + choices.integer(2, 3)])


def reorder(schedule: Schedule, block: Any, choices: Choices) -> None:
    """Exchange two loops."""
    loops = list(schedule.get_loops(block))
    schedule.reorder(choices.pick(loops), choices.pick(loops))


def tile(schedule: Schedule, block: Any, choices: Choices) -> None:
    """Tile two loops."""
    first, second = list(schedule.get_loops(block))[:2]
    (a, b), (c, d) = schedule.split(first, [None, 2]), schedule.split(second, [None, 2])
    schedule.reorder(a, c, b, d)


def compute_at(schedule: Schedule, block: Any, choices: Choices) -> None:
    """Move a producer into a loop of its consumer."""
    consumer = choices.pick(list(schedule.get_consumers(block)))
    schedule.compute_at(block, _loop(schedule, consumer, choices), choices.chance(0.3))


def reverse_compute_at(schedule: Schedule, block: Any, choices: Choices) -> None:
    """Move a consumer into a loop of its producer."""
    producer = choices.pick(list(schedule.get_producers(block)))
    schedule.reverse_compute_at(block, _loop(schedule, producer, choices))


def compute_inline(schedule: Schedule, block: Any, choices: Choices) -> None:
    """Put a block into those that read it."""
    schedule.compute_inline(block)


def rfactor(schedule: Schedule, block: Any, choices: Choices) -> None:
    """Reduce parts first."""
    if not _begins_at_zero(schedule, block):
        return
    loop = _loop(schedule, block, choices)
    if choices.chance(0.5):
        _, loop = schedule.split(loop, [None, 2])
    schedule.rfactor(loop, choices.integer(0, 1))


def cache_read(schedule: Schedule, block: Any, choices: Choices) -> None:
    """Read from a copy, near or far."""
    reads = len(schedule.get(block).reads)
    copy = schedule.cache_read(block, choices.integer(0, reads - 1), choices.pick(_SCOPES))
    if choices.chance(0.7):
        schedule.compute_at(copy, _loop(schedule, block, choices))


def cache_write(schedule: Schedule, block: Any, choices: Choices) -> None:
    """Write to a copy first."""
    copy = schedule.cache_write(block, 0, choices.pick(_SCOPES))
    if choices.chance(0.7):
        schedule.reverse_compute_at(copy, _loop(schedule, block, choices))


def decompose_reduction(schedule: Schedule, block: Any, choices: Choices) -> None:
    """Begin a reduction in a block of its own."""
    schedule.decompose_reduction(block, _loop(schedule, block, choices))


def annotate(schedule: Schedule, block: Any, choices: Choices) -> None:
    """Say how a loop is to run."""
    loop = _loop(schedule, block, choices)
    kinds = [schedule.vectorize, schedule.parallel, schedule.unroll]
    choices.pick(kinds)(loop)


def add_unit_loop(schedule: Schedule, block: Any, choices: Choices) -> None:
    """Add a loop of one iteration."""
    schedule.add_unit_loop(_loop(schedule, block, choices))


def storage_align(schedule: Schedule, block: Any, choices: Choices) -> None:
    """Ask for aligned rows."""
    schedule.storage_align(block, 0, 0, 8, 1)


def bind(schedule: Schedule, block: Any, choices: Choices) -> None:
    """Run a loop on threads."""
    threads = ["blockIdx.x", "threadIdx.x", "vthread.x"]
    schedule.bind(_loop(schedule, block, choices), choices.pick(threads))


def blockize(schedule: Schedule, block: Any, choices: Choices) -> None:
    """Make a block of the loops inside one."""
    if _begins_at_zero(schedule, block):
        schedule.blockize(_loop(schedule, block, choices))


def transform_layout(schedule: Schedule, block: Any, choices: Choices) -> None:
    """Store the elements of an intermediate result in another order."""
    outputs = schedule.get_output_blocks(schedule.get_sblock("root"))
    if str(schedule.get(block).name_hint) in {str(schedule.get(o).name_hint) for o in outputs}:
        return
    rank = len(schedule.get(block).writes[0].region)
    maps = {1: lambda i: [i // 2, i % 2], 2: lambda i, j: [j, i], 3: lambda i, j, k: [k, j, i]}
    schedule.transform_layout(block, ("write", 0), maps[rank])


_SCOPES = ["local", "shared", "global"]

STEPS: list[Callable[[Schedule, Any, Choices], None]] = [
    split, fuse, reorder, tile, compute_at, compute_at, reverse_compute_at, compute_inline,
    rfactor, cache_read, cache_read, cache_write, cache_write, decompose_reduction, annotate,
    add_unit_loop, storage_align, bind, blockize, transform_layout,
]  # fmt: skip
