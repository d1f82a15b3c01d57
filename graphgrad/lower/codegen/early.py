"""Large kernels built while the rest of their program is still lowered.

Python lowers a program in one thread, and other cores are idle. So a kernel that has its schedule
is built at once, in the form that it is likely to have in the end. The build is used only if the
finished kernel is structurally equal to that form, attributes included; otherwise it is discarded.
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
from ..cpu.small_tanh import expand_small_tanh
from ..cpu.vector_math import vectorize_math
from .parallel import Built, Kernels, build, piece_count, statements_in
from .thread_pool import stack_for_llvm

_MIN_KERNEL_STATEMENTS = 40
"""Statements of a kernel that is built early: smaller ones are often changed by later passes."""

_TOGETHER = 250
"""Statements that are worth an LLVM module, which by itself costs some ten milliseconds."""


class _EarlyBuild(NamedTuple):
    """Kernels by name, as they are likely to be in the end, and the LLVM module of them."""

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
    """Begin to build a kernel while others are lowered, in the form that it will have in the end.

    Every pass over kernels of processors runs before this one, or is applied here, as
    `vectorize_math` and `expand_small_tanh` are: a pass that changes a kernel later makes its early
    build useless.
    """
    if early is not None:
        early.offer(kernel_name, expand_small_tanh(vectorize_math(kernel)))


class EarlyBuilds:
    """Early builds of one program's kernels: a ``with`` block around lowering and generation.

    They run in one thread for each core but the caller's. There are none if the current pass
    context has instruments, which see the passes of one thread alone.

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
        spare_cores = int(target.attrs.get("num-cores", 1)) - 1 if is_host else 0
        has_threads = spare_cores > 0 and not self._context.instruments
        self._threads = ThreadPoolExecutor(spare_cores) if has_threads else None

    def __enter__(self) -> EarlyBuilds:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._threads is not None:
            # Where something was raised, such as Ctrl-C, builds that have begun end unseen.
            self._threads.shutdown(wait=kind is None, cancel_futures=True)

    def offer(self, name: str, kernel: tirx.PrimFunc) -> None:
        """Have a kernel built, as soon as enough large kernels have been offered for a module.

        Parameters
        ----------
        name : str
            The name by which it is called, and will be exported.
        kernel : PrimFunc
            The scheduled kernel.
        """
        if self._threads is None:
            return
        statements = statements_in(kernel)
        self._statements += statements
        if statements >= _MIN_KERNEL_STATEMENTS:
            self._waiting[name] = kernel.with_attrs({"global_symbol": name, CHECKED: True})
            self._waiting_statements += statements
        # A small program stays in one LLVM module, which makes no use of early builds.
        if self._waiting_statements >= _TOGETHER and piece_count(self._statements) > 1:
            with stack_for_llvm():
                built = self._threads.submit(self._build, self._waiting)
            self._early.append(_EarlyBuild(self._waiting, built))
            self._waiting, self._waiting_statements = {}, 0

    def taken(self, kernels: Kernels) -> dict[Any, Future[Built]]:
        """Those of some finished kernels that are built already, or are being built.

        Builds that have not begun are canceled.
        """
        variable_of_name = {variable.name_hint: variable for variable in kernels}
        usable: dict[Any, Future[Built]] = {}
        for early_build in self._early:
            # One kernel that came out otherwise makes its module useless, which would export it.
            is_right = all(
                name in variable_of_name
                and tvm_ffi.structural_equal(kernel, kernels[variable_of_name[name]])
                for name, kernel in early_build.kernels.items()
            )
            # Every build is canceled, useful or not; this fails for one that has begun.
            if not early_build.built.cancel() and is_right:
                usable.update(
                    {variable_of_name[name]: early_build.built for name in early_build.kernels}
                )
        return usable

    def _build(self, kernels: dict[str, tirx.PrimFunc]) -> Built:
        with self._context:
            return build(
                {tvm.ir.GlobalVar(name): kernel for name, kernel in kernels.items()}, self._target
            )
