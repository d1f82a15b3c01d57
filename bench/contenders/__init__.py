"""The systems that `step.py`, `loops.py` and `kernels.py` compare: one module each.

A contender of `step.py` or `loops.py` has ``prepare(workload, threads, **options) -> step``: it
reads the workload's files, builds its training step, and returns a function that makes one step on
the workload's batch and returns the loss before the step as a float. It imports its libraries when
it is imported itself, so that the memory they take counts as baseline. ``INCLUDES`` says what a
step does. A step of `loops.py` has a method ``gradients``, which returns those of the only step so
far by name, as numpy arrays.

`kernels_ours` and `kernels_torch` compete in `kernels.py`; see `kernel_worker.py`.
"""

from dataclasses import dataclass
from typing import Any

_OURS, _TORCH = "contenders.ours", "contenders.torch_step"

BEFORE = "graphgrad_before"
"""The graphgrad of another checkout."""

DERIVED = "graphgrad_derived"
"""This one, with all gradients derived: no rule of graphgrad's own is used."""

CONTENDERS: dict[str, tuple[str, dict[str, Any]]] = {
    "graphgrad": (_OURS, {}),
    DERIVED: (_OURS, {"rules": "derived"}),
    BEFORE: (_OURS, {}),
    "torch": (_TORCH, {}),
    "torch_channels_last": (_TORCH, {"channels_last": True}),
    "torch_compile": (_TORCH, {"compiled": True}),
    "torch_compile_channels_last": (_TORCH, {"channels_last": True, "compiled": True}),
    "tvm": ("contenders.stock_tvm", {}),
}
"""The module and the options of each contender."""

HALVES = ("bfloat16", "float16")


def in_precision(name: str, precision: str) -> str:
    """Return the name of a contender that trains in mixed precision."""
    return f"{name}_{precision}"


CONTENDERS |= {
    in_precision(name, half): (module, {**options, "precision": half})
    for name, (module, options) in CONTENDERS.items()
    for half in HALVES
    if module in (_OURS, _TORCH) and name != BEFORE
}


@dataclass(frozen=True)
class InstructionSet:
    """What holds contenders to less than this processor can do.

    Attributes
    ----------
    mcpu : str
        The processor that graphgrad compiles for, as LLVM names it.
    variables : dict
        The environment of torch's libraries.
    """

    mcpu: str
    variables: dict[str, str]


INSTRUCTION_SETS = {
    "avx2": InstructionSet(
        "haswell",
        {
            "ONEDNN_MAX_CPU_ISA": "AVX2",
            "ATEN_CPU_CAPABILITY": "avx2",
            "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        },
    ),
    "sse4.2": InstructionSet(
        "x86-64-v2",
        {
            "ONEDNN_MAX_CPU_ISA": "SSE41",
            "ATEN_CPU_CAPABILITY": "default",
            "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        },
    ),
}

_LOOPS_TORCH = "contenders.loops_torch"

COPY = "copy"

LOOP_CONTENDERS: dict[str, tuple[str, dict[str, Any]]] = {
    "graphgrad": ("contenders.loops_ours", {}),
    DERIVED: ("contenders.loops_ours", {"rules": "derived"}),
    BEFORE: ("contenders.loops_ours", {}),
    "torch": (_LOOPS_TORCH, {}),
    "torch_compile": (_LOOPS_TORCH, {"compiled": True}),
    COPY: ("contenders.copy_arrays", {}),
}
"""The same of `loops.py`."""

QUICK = ("graphgrad", "torch", "torch_channels_last", "tvm")
"""Who competes unless the command line says otherwise: torch's compiler takes minutes."""
