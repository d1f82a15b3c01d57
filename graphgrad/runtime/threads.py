"""The threads that TVM computes with: one for each core, wherever their caller may run.

Each thread that calls kernels has a pool of TVM's, made when it is first needed. TVM gives it half
of the system's processors, in fear of hyper-threads, and binds it, *and the caller*, to the first
of them; whatever the caller starts later is bound to these as well. Two programs so share a few
processors while others idle. Here a pool gets as many threads as there are cores, and nothing is
bound. See ``src/runtime/threading_backend.cc`` and ``thread_pool.cc`` of TVM 0.27.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable

import tvm
import tvm_ffi

from .cores import processors, usable_cores
from .errors import InputError

VARIABLES = ("TVM_NUM_THREADS", "OMP_NUM_THREADS")
"""What TVM asks for the number of threads, in this order."""

_SHARE_ALL = -3  # `kSpecifyThreadShareAllCore` of TVM's `ThreadGroup::AffinityMode`
"""TVM's mode in which each thread may run on all processors that are given."""

_UNTOUCHED, _FORKED = 0, -1
"""In place of a choice: the pool of a thread is as TVM makes it, or a copy without its threads."""

_chosen: int | None = None
_of_thread = threading.local()


def set_threads(count: int | None) -> None:
    """Choose how many threads kernels for processors compute with, in all of this process.

    It takes effect in the calling thread at once, and in others before they compute next.

    Parameters
    ----------
    count : int or None
        From 1 to the number of processors that the calling thread may run on. None goes back to
        what ``TVM_NUM_THREADS`` or ``OMP_NUM_THREADS`` says, else to as many as there are cores.

    Raises
    ------
    InputError
        It is no such number; or the calling thread's pool has fewer threads and cannot grow. None
        does, so this comes first, or the one that made the pool must have been given as many.
    """
    global _chosen  # noqa: PLW0603 (one choice for the process)
    limit = len(processors())
    is_whole = isinstance(count, int) and not isinstance(count, bool)
    if count is not None and not (is_whole and 1 <= count <= limit):
        raise InputError(
            f"threads={count!r} must be None or a whole number from 1 to {limit}, the processors "
            "that this process may run on"
        )
    previous, _chosen = _chosen, count
    prepare()
    pool = pool_size()
    if count is not None and pool < count:
        _chosen = previous
        raise InputError(
            f"threads={count} are too many: the pool of this thread was made with {pool}, and none "
            "can grow. Choose before anything computes, or set TVM_NUM_THREADS"
        )


def threads() -> int:
    """How many threads kernels that the calling thread calls are to compute with."""
    return _chosen or _from_environment() or usable_cores()


def pool_size() -> int:
    """The number of threads of the calling thread's pool; TVM makes one if need be."""
    if getattr(_of_thread, "choice", _UNTOUCHED) == _FORKED:
        return 1
    return int(tvm_ffi.get_global_func("runtime.NumThreads")())


def prepare() -> None:
    """Give the calling thread's pool its threads, before it computes: once, and at each new choice.

    A pool whose number of threads was set by somebody else, or by a variable of the environment, is
    left alone until `set_threads` is called.
    """
    choice_of_pool = getattr(_of_thread, "choice", _UNTOUCHED)
    # Where nobody has chosen, both are None after the first time.
    if choice_of_pool in (_chosen, _FORKED):
        return
    choice = _chosen
    if choice_of_pool != _UNTOUCHED or choice is not None or not _is_decided():
        _configure(threads())
    _of_thread.choice = choice


def _configure(count: int) -> None:
    """Let the calling thread's pool use some threads, each free to run where this thread may.

    A pool gets its threads when it is made and none later, so it is made with those that it may
    need again.
    """
    configure = tvm_ffi.get_global_func("runtime.config_threadpool")
    allowed = [str(processor) for processor in processors()]
    pool_threads = max(count, usable_cores())
    affinity = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    try:
        # One processor for each thread that is to be made, which is how TVM counts them.
        configure(
            _SHARE_ALL, count, [allowed[index % len(allowed)] for index in range(pool_threads)]
        )
        # The pool is made, so that this only widens where its threads may run.
        if 1 < pool_threads < len(allowed):
            configure(_SHARE_ALL, count, allowed)
    finally:
        if affinity is not None:
            os.sched_setaffinity(0, affinity)  # making a pool binds its caller too


def _is_decided() -> bool:
    """Whether a variable, or a call of TVM's own function, has said how large the pool is."""
    if _from_environment() is not None:
        return True
    concurrency = _function("_ZN3tvm7runtime9threading14MaxConcurrencyEv")
    if concurrency is None:
        return False
    # A thread that nobody has touched tells what TVM would do by itself.
    untouched: list[int] = []
    new_thread = threading.Thread(target=lambda: untouched.append(concurrency()))
    new_thread.start()
    new_thread.join()
    return [concurrency()] != untouched


def _from_environment() -> int | None:
    """The number that the environment gives, read as TVM does; None if there is none."""
    for name in VARIABLES:
        if name in os.environ:
            digits = re.match(r"\s*[+-]?\d+", os.environ[name])
            return max(int(digits[0]) if digits else 0, 1)
    return None


def _compute_alone() -> None:
    """Let a forked process compute in one thread: a fork copies the pool without its threads."""
    limit = _function("_ZN3tvm7runtime9threading17SetMaxConcurrencyEi")
    if hasattr(_of_thread, "choice") and limit is not None:
        limit(1)
        _of_thread.choice = _FORKED


def _function(name: str) -> Callable[..., int] | None:
    """A function that TVM's library exports but does not register, by its mangled C++ name.

    None if the library has none of that name.
    """
    return getattr(tvm.base._LOADED_LIBS["tvm_runtime"], name, None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_compute_alone)
