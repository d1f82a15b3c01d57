"""The origins of kernels: which calls of a program each kernel of its lowered form computes.

A provenance (`ir/provenance.py`) is written on the calls of a program, and stock passes lose it:
fusion makes functions of several calls, shares them between equal groups and renames all values. So
the passes are watched, and what they made is recognized by what it computes (`terms.py`).
What is not recognized is unknown; nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, tirx

from ..ir.provenance import Provenance, read
from .terms import Terms, bindings_of, calls_kernel, calls_packed, variables_read

_LEGALIZATION = "LegalizeOps"
_FUSION = "FuseOps"
_FUSED_KERNELS = "FuseTIR"
_LAST = "ToNonDataflow"
_LOWERING = "graphgrad.lower"
"""Passes by name. After `_LAST` kernel calls keep their order alone; `_LOWERING` is the whole."""


@dataclass(frozen=True)
class Origin:
    """A call of the program, before it became a kernel or part of one.

    Attributes
    ----------
    op : str
        The Relax op, such as ``"relax.nn.conv2d"``; of a call of something else, its name.
    provenance : Provenance
        Its ONNX node, and whose gradient it belongs to.
    """

    op: str
    provenance: Provenance


@dataclass(frozen=True)
class KernelCall:
    """A call of a kernel, or of a packed function, in a lowered function.

    Attributes
    ----------
    kernel : str
        Its name in the lowered module; of a packed function, the one that it is registered by.
    binding : relax.VarBinding
        What it is bound to, before memory is planned.
    origins : tuple of Origin
        What it computes, in the program's order; empty if that is not known.
    """

    kernel: str
    binding: Any
    origins: tuple[Origin, ...]


@tvm.ir.instrument.pass_instrument
class OriginRecorder:
    """A recorder of what passes make of a program's calls, as an instrument of TVM's pass context.

    Parameters
    ----------
    function : str
        The Relax function whose kernels are asked for.

    Attributes
    ----------
    calls : list of KernelCall
        In the order in which they run, once the module is lowered.
    packed_calls : list of KernelCall
        Likewise, of packed functions, such as a library's.
    module : IRModule or None
        The lowered module that holds `calls`, before memory is planned.
    added : frozenset of str
        Kernels that were added after that, which compute nothing of the program: checks.
    """

    def __init__(self, function: str):
        self._function = function
        self._origins: dict[Any, Origin] = {}
        self._legalized, self._fused = Terms(), Terms()
        self._made_of: Mapping[Any, tuple[Any, ...]] = {}
        self._reads: dict[Any, list[Any]] = {}
        self.calls: list[KernelCall] = []
        self.packed_calls: list[KernelCall] = []
        self.module: tvm.IRModule | None = None
        self.added: frozenset[str] = frozenset()

    def run_before_pass(self, mod: tvm.IRModule, info: Any) -> None:
        """Look at a module that a pass is about to change."""
        name, function = str(info.name), self._of(mod)
        if function is None:
            return
        if name == _LEGALIZATION:
            self._origins = {b.var: _origin(b.value) for b in bindings_of(function)}
        elif name == _FUSION:
            # What passes of ours have copied since has the origin of what it is a copy of.
            for var, copied in self._legalized.recognized(function).items():
                if copied:
                    self._origins.setdefault(var, self._origins[copied[0]])
            self._fused.learn(function)
        elif name == _LAST:
            self.module = mod
            computed = list(self._computed_by_calls(function))
            self.calls = [call for call in computed if calls_kernel(call.binding.value)]
            self.packed_calls = [call for call in computed if calls_packed(call.binding.value)]

    def run_after_pass(self, mod: tvm.IRModule, info: Any) -> None:
        """Look at what a pass has made."""
        name, function = str(info.name), self._of(mod)
        if function is None:
            return
        if name == _LEGALIZATION:
            self._origins = _propagate_origins(self._origins, function)
            self._legalized.learn(function)
            self._remember(function, {b.var: (b.var,) for b in bindings_of(function)})
        elif name == _FUSION:
            self._fused.learn_groups(mod)
        elif name == _FUSED_KERNELS:
            self._remember(function, self._fused.recognized(function))
        elif name == _LOWERING and self.module is not None:
            self.added = _kernels(mod) - _kernels(self.module)

    def _of(self, mod: tvm.IRModule) -> relax.Function | None:
        """The function that is asked for; None if passes run on a module without it."""
        for variable, function in mod.functions.items():
            if variable.name_hint == self._function and isinstance(function, relax.Function):
                return function
        return None

    def _remember(self, function: relax.Function, made_of: Mapping[Any, tuple[Any, ...]]) -> None:
        """Keep what the variables of a function read, and which bindings each of them computes."""
        self._made_of = made_of
        self._reads = {b.var: variables_read(b.value) for b in bindings_of(function)}

    def _computed_by_calls(self, function: relax.Function) -> Iterator[KernelCall]:
        """Yield calls of kernels and of packed functions in order, each with its origins."""
        bindings = bindings_of(function)
        items: dict[Any, list[Any]] = {}
        for binding in bindings:
            if isinstance(binding.value, relax.TupleGetItem):
                items.setdefault(binding.value.tuple_value, []).append(binding.var)
        for binding in bindings:
            if calls_kernel(binding.value) or calls_packed(binding.value):
                results = [binding.var, *items.get(binding.var, [])]
                origins = self._computed(results, variables_read(binding.value))
                yield KernelCall(_name(binding.value.args[0]), binding, origins)

    def _computed(self, results: list[Any], read_by_kernel: list[Any]) -> tuple[Origin, ...]:
        """The bindings between what a kernel reads and its results.

        A pass of ours that makes one kernel of several keeps the variables of its results, but not
        those in between. Nothing is known if that leads past what the kernel reads.
        """
        bindings_found: dict[Any, None] = {}
        unvisited = list(results)
        seen = set(read_by_kernel)
        while unvisited:
            var = unvisited.pop()
            if var in seen:
                continue
            seen.add(var)
            if var not in self._reads:
                # A result under a new name tells nothing, but its siblings may; an unknown value
                # in between means that the search has left the kernel.
                if var in results:
                    continue
                return ()
            bindings_found.update(dict.fromkeys(self._made_of.get(var, ())))
            unvisited += self._reads[var]
        order = [var for var in self._origins if var in bindings_found]
        return tuple(dict.fromkeys(self._origins[var] for var in order))


@contextmanager
def recorded_origins(function: str) -> Iterator[OriginRecorder]:
    """A recorder of what becomes of a function that is lowered inside the ``with`` block."""
    recorder = OriginRecorder(function)
    current = tvm.transform.PassContext.current()
    watched = tvm.transform.PassContext(
        opt_level=current.opt_level,
        required_pass=current.required_pass,
        disabled_pass=current.disabled_pass,
        instruments=[*current.instruments, recorder],
        config=current.config,
    )
    with watched:
        yield recorder


def phases_of(origins: Sequence[Origin]) -> str:
    """The phases of the step that origins belong to, joined by `` + ``."""
    return " + ".join(dict.fromkeys(map(_phase, origins)))


def classes_of(origins: Sequence[Origin]) -> str:
    """The operators of the ONNX file that origins belong to, joined by `` + ``."""
    return " + ".join(dict.fromkeys(map(_class, origins)))


def nodes_of(origins: Sequence[Origin]) -> tuple[str, ...]:
    """The names of the ONNX nodes that origins belong to, each once."""
    nodes = (origin.provenance.node for origin in origins)
    return tuple(dict.fromkeys(node for node in nodes if node))


def _name(callee: Any) -> str:
    """The name of a kernel or of a packed function."""
    is_packed = isinstance(callee, relax.ExternFunc)
    return str(callee.global_symbol if is_packed else callee.name_hint)


def _phase(origin: Origin) -> str:
    """The phase of the step that an origin belongs to."""
    if origin.provenance.origin is not None and not origin.provenance.primal:
        return "backward"
    return "update" if origin.provenance.op_type == "update" else "forward"


def _class(origin: Origin) -> str:
    """The operator of the ONNX file that an origin belongs to, else the Relax op."""
    return origin.provenance.op_type or origin.op.removeprefix("relax.")


def _kernels(mod: tvm.IRModule) -> frozenset[str]:
    """The names of a module's kernels."""
    return frozenset(
        str(variable.name_hint)
        for variable, function in mod.functions.items()
        if isinstance(function, tirx.PrimFunc)
    )


def _origin(value: Any) -> Origin:
    """The origin of a binding before legalization, by its value."""
    op = getattr(value, "op", None)
    name = getattr(op, "name", None) or getattr(op, "name_hint", None) or type(value).__name__
    return Origin(str(name), read(getattr(value, "span", None)))


def _propagate_origins(
    origins: Mapping[Any, Origin], function: relax.Function
) -> dict[Any, Origin]:
    """The origins after legalization: a call that became several is the last one of them."""
    new_origins: dict[Any, Origin] = {}
    without_origin: list[Any] = []
    for binding in bindings_of(function):
        without_origin.append(binding.var)
        if binding.var in origins:
            new_origins.update(dict.fromkeys(without_origin, origins[binding.var]))
            without_origin = []
    return new_origins
