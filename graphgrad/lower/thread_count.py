"""The number of threads that kernels compute with.

`graphgrad.runtime.threads` does the work; here its errors become those of the compiler.
"""

from __future__ import annotations

from ..errors import ArgumentError
from ..runtime import threads as pool
from ..runtime.errors import InputError


def set_threads(count: int | None) -> None:
    """Choose how many threads kernels for processors compute with, in all of this process.

    By default, unless ``TVM_NUM_THREADS`` or ``OMP_NUM_THREADS`` says something else, as many as
    there are cores: a processor that is half of a core, one that this process may not use, and what
    a container's CPU quota takes away do not count. It takes effect in the calling thread at once,
    and in others before they compute next.

    Parameters
    ----------
    count : int or None
        From 1 to the number of processors that the calling thread may run on. None goes back to the
        default.

    Raises
    ------
    ArgumentError
        It is no such number; or kernels that graphgrad does not know of have computed in this
        thread before, with fewer threads, whose number cannot grow.

    Examples
    --------
    >>> gg.set_threads(1)
    """
    try:
        pool.set_threads(count)
    except InputError as error:
        raise ArgumentError(str(error)) from error
