"""Large kernels built while the rest of their program is still lowered.

Python lowers a program in one thread, and other cores wait. So a kernel that has its schedule is
built at once, as what it is likely to be in the end. It counts only if that is what it has become,
to the last attribute: what passes that follow make of it is not relied on.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, NamedTuple

import tvm
import tvm_ffi
from tvm import tirx

from ...ir.passes import Phase, compiler_pass
from ...memory.argument_checks import CHECKED
from ..cpu.vector_math import vectorize_math
from .parallel import Built, Kernels, build, piece_count, statements_in
from .thread_pool import stack_for_llvm

_MIN_KERNEL_STATEMENTS = 40
"""Statements of a kernel that is built early: smaller ones are often changed by later passes."""

_TOGETHER = 250
"""Statements that are worth an LLVM module, which takes some ten milliseconds by itself."""


class _EarlyBuild(NamedTuple):
    """Kernels by name, as they are likely to be in the end, and the module of them."""

    kernels: dict[str, tirx.PrimFunc]
    built: Future[Built]


@compiler_pass(
    Phase.SCHEDULED,
    over="kernel",
    targets=("llvm",),
    after={
        "write_exact_divisions": "what is built is what the kernel will be",
        "guard_reads": "what is built is what the kernel will be",
        "vectorize_nan_tests": "what is built is what the kernel will be",
    },
)
def build_early(kernel: tirx.PrimFunc, kernel_name: str, early: EarlyBuilds | None) -> None:
    """Begin to build a kernel while others are lowered, as what passes will make of it.

    Every pass over kernels of processors stands before this one, or is applied here, as
    `vectorize_math` is: what changes a kernel later makes its early build useless.
    """
    if early is not None:
        early.offer(kernel_name, vectorize_math(kernel))


class EarlyBuilds:
    """The kernels of one program, to be used in a ``with`` block around lowering and generation.

    They are as many as threads get done, one for each core but that of the caller. There are none
    if the current pass context has instruments, which see the passes of one thread alone.

    Parameters
    ----------
    target : Target
        Of the kind llvm; for others nothing is built.
    """

    def __init__(self, target: tvm.target.Target):
        self._target = target
        self._context = tvm.transform.PassContext.current()
        self._statements = 0
        self._waiting: dict[str, tirx.PrimFunc] = {}
        self._waiting_statements = 0
        self._early: list[_EarlyBuild] = []
        is_host = str(target.kind.name) == "llvm"
        spare = int(target.attrs.get("num-cores", 1)) - 1 if is_host else 0
        has_threads = spare > 0 and not self._context.instruments
        self._threads = ThreadPoolExecutor(spare) if has_threads else None

    def __enter__(self) -> EarlyBuilds:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)

    def offer(self, name: str, kernel: tirx.PrimFunc) -> None:
        """Build a kernel some time, if it and all that were offered are worth it.

        Parameters
        ----------
        name : str
            By which it is called, and will be exported.
        kernel : PrimFunc
            Scheduled.
        """
        if self._threads is None:
            return
        statements = statements_in(kernel)
        self._statements += statements
        if statements >= _MIN_KERNEL_STATEMENTS:
            self._waiting[name] = kernel.with_attrs({"global_symbol": name, CHECKED: True})
            self._waiting_statements += statements
        # The module must be so large that it will not stay in one piece.
        if self._waiting_statements >= _TOGETHER and piece_count(self._statements) > 1:
            with stack_for_llvm():
                built = self._threads.submit(self._build, self._waiting)
            self._early.append(_EarlyBuild(self._waiting, built))
            self._waiting, self._waiting_statements = {}, 0

    def taken(self, kernels: Kernels) -> dict[Any, Future[Built]]:
        """Those of some finished kernels that are built already, or are being built.

        The building of all others ends here, or does not begin.
        """
        named = {variable.name_hint: variable for variable in kernels}
        found: dict[Any, Future[Built]] = {}
        for early in self._early:
            # One that is not what it was taken for spoils its module, which exports it.
            is_right = all(
                name in named and tvm_ffi.structural_equal(kernel, kernels[named[name]])
                for name, kernel in early.kernels.items()
            )
            if not early.built.cancel() and is_right:
                found.update({named[name]: early.built for name in early.kernels})
        return found

    def _build(self, kernels: dict[str, tirx.PrimFunc]) -> Built:
        with self._context:
            return build({tvm.ir.GlobalVar(n): f for n, f in kernels.items()}, self._target)
