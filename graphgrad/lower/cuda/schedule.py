"""Schedules for GPUs: each PrimFunc takes the first rule whose result is proved to run there.

The proof is `lowering.check`: the scheduled kernel becomes device code and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ...errors import LoweringError
from ...ir.kernel_calls import RUNS_ON_HOST
from ...ir.passes import Phase, compiler_pass
from ...ir.rewrite import map_kernels
from .lowering import SCHEDULED, check
from .rules import Rule, scheduling_rules

_MAX_REPORTED_KERNELS = 3
"""Kernels of which an error reports why each rule refused them; further ones are only named."""


@dataclass
class Kernel:
    """How one PrimFunc became device code.

    Attributes
    ----------
    name : str
        Its name in the module.
    rule : str
        The rule that took it.
    refused : list of (str, str)
        The rules tried before, and why each did not take it.
    given : PrimFunc or None
        What was scheduled.
    """

    name: str
    rule: str
    refused: list[tuple[str, str]] = field(default_factory=list)
    given: tirx.PrimFunc | None = None


@compiler_pass(Phase.FUSED, to=Phase.SCHEDULED, targets=("cuda",))
def schedule_threads(
    mod: tvm.IRModule,
    target: tvm.target.Target,
    kernels: list[Kernel] | None = None,
    rules: Sequence[Rule] | None = None,
    tf32: bool = False,
) -> tvm.IRModule:
    """Schedule every PrimFunc but those of the host for a GPU.

    Parameters
    ----------
    mod : IRModule
    target : Target
    kernels : list, optional
        Receives one `Kernel` per PrimFunc.
    rules : sequence of Rule, optional
        In the place of `scheduling_rules`.
    tf32 : bool
        Whether contractions of float32 may round their factors to TF32.

    Raises
    ------
    LoweringError
        No rule takes some kernels; the error lists all of them.
    """
    scheduled_by_hash: dict[int, list[tuple[tirx.PrimFunc, tirx.PrimFunc, Kernel]]] = {}
    failed = []
    tried = scheduling_rules(tf32) if rules is None else rules

    def scheduled(name: Any, func: tirx.PrimFunc) -> tirx.PrimFunc:
        if _is_for_host(func):
            return func
        same_hash = scheduled_by_hash.setdefault(tvm_ffi.structural_hash(func), [])
        known_result = next(
            (entry for entry in same_hash if tvm_ffi.structural_equal(entry[0], func)), None
        )
        if known_result is None:
            result, record = schedule_function(name.name_hint, func, target, tried)
            if result is None:
                failed.append(record)
                return func
            known_result = (func, result, record)
            same_hash.append(known_result)
        if kernels is not None:
            kernels.append(replace(known_result[2], name=name.name_hint))
        # One that is equal has other variables, but the same attributes.
        return known_result[1].with_attr(SCHEDULED, True)

    changed = map_kernels(mod, scheduled)
    if failed:
        raise LoweringError(_no_rule_message(failed))
    return changed


def _is_for_host(func: tirx.PrimFunc) -> bool:
    """Whether a PrimFunc has a target of its own, and that is the host, or is meant for it."""
    attributes = func.attrs or {}
    kernel_target = attributes.get("target")
    is_host = kernel_target is not None and str(kernel_target.kind.name) == "llvm"
    return is_host or RUNS_ON_HOST in attributes


def schedule_function(
    name: str,
    func: tirx.PrimFunc,
    target: tvm.target.Target,
    rules: Sequence[Rule] = scheduling_rules(),
) -> tuple[tirx.PrimFunc | None, Kernel]:
    """A PrimFunc scheduled by the first rule that fits, and the record of how it was found.

    The PrimFunc is None if no rule fits.
    """
    refused: list[tuple[str, str]] = []
    for rule in rules:
        result, why = _try_rule(rule, func, target)
        if result is not None:
            return result, Kernel(name, rule.name, refused, func)
        refused.append((rule.name, why))
    return None, Kernel(name, "", refused, func)


def _try_rule(
    rule: Rule, func: tirx.PrimFunc, target: tvm.target.Target
) -> tuple[tirx.PrimFunc | None, str]:
    """The PrimFunc as a rule schedules it, or None and why the rule does not take it."""
    try:
        result = rule.apply(func, target)
    # A programming error in a rule of ours must not pass for a kernel that does not fit it.
    except (ArithmeticError, AttributeError, ImportError, LookupError, NameError, TypeError):
        raise
    except Exception as error:
        return None, _first_line(error)
    if result is None:
        return None, "another structure"
    try:
        check(result, target)
    except Exception as error:  # TVM's passes raise whatever they like
        return None, _first_line(error)
    return result, ""


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"


def _no_rule_message(failed: list[Kernel]) -> str:
    """The error message for kernels that no rule takes."""
    details = "; ".join(
        f"{kernel.name} ({', '.join(f'{rule}: {why}' for rule, why in kernel.refused)})"
        for kernel in failed[:_MAX_REPORTED_KERNELS]
    )
    names = ", ".join(kernel.name for kernel in failed[_MAX_REPORTED_KERNELS:])
    return (
        f"{len(failed)} kernel(s) would run on the host, because no CUDA schedule takes them: "
        f"{details}{'; also ' if names else ''}{names}; rewrite the op, or compile for an llvm "
        "target"
    )
