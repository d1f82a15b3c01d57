"""Targets: what code is generated for.

To TVM a bare ``"llvm"`` means a generic processor of the architecture, without wide vectors and
fused multiply-add, and code for it is several times slower than it need be. Here it means this
host.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any

import tvm

from ..errors import TargetError
from ..runtime.threads import threads
from .cpu.features import missing_features, uses_tiles
from .cuda.architecture import check_architecture
from .cuda.library.devices import ARCHITECTURES
from .device import cuda_absence, cuda_architecture

_ACCEPTED = (
    'accepted: a kind ("llvm", "cuda"), a GPU ("h200", "a100"), a tag ("nvidia/nvidia-h100"), a '
    'dict such as {"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": 8} or '
    '{"kind": "cuda", "arch": "sm_90"}, or a tvm.target.Target'
)


_OPT_LEVEL = 1
"""LLVM's optimization level. The schedules leave it little to do: at a higher one ResNet-18
compiles for a third longer, and its step takes as long."""


def target(spec: str | Mapping[str, Any] | tvm.target.Target) -> tvm.target.Target:
    """The target that `spec` names; a bare ``"llvm"`` or ``"cuda"`` is this machine's.

    Parameters
    ----------
    spec : str, dict or Target
        A kind, ``"h200"`` or ``"a100"``, a tag, a configuration (also as JSON) or a finished
        target. An ``mcpu``, ``num-cores``, ``opt-level`` or ``arch`` that is given is kept, and so
        is a target of another architecture.

    Raises
    ------
    TargetError
        The target is unknown, malformed, names an unknown processor or a GPU that is not served,
        has no code generator in this build of TVM, or names no GPU where this machine has none.
    """
    parsed = parse(spec)
    return _resolve_host(parsed) if str(parsed.kind.name) == "llvm" else parsed


def parse(spec: str | Mapping[str, Any] | tvm.target.Target) -> tvm.target.Target:
    """The target exactly as `spec` says, checked; a bare ``"llvm"`` stays generic.

    Raises
    ------
    TargetError
        As for `target`.
    """
    if not isinstance(spec, str | Mapping | tvm.target.Target):
        raise TargetError(f"a target cannot be a {type(spec).__name__}; {_ACCEPTED}")
    completed = _resolve_gpu(spec)
    try:
        parsed = tvm.target.Target(dict(completed) if isinstance(completed, Mapping) else completed)
    except (ValueError, TypeError, RuntimeError) as error:
        raise TargetError(f"cannot read the target {spec!r}: {error}; {_ACCEPTED}") from error
    kind = str(parsed.kind.name)
    if tvm.get_global_func(f"target.build.{kind}", allow_missing=True) is None:
        raise TargetError(
            f"this build of TVM has no code generator for the target kind {kind!r}; {_ACCEPTED}"
        )
    if kind == "cuda":
        check_architecture(str(parsed.attrs["arch"]))
    if str(parsed.attrs.get("mcpu", "")) == "native":
        raise TargetError(
            'mcpu="native" silently means a generic processor to TVM; leave mcpu out to get this '
            "host, or name the processor"
        )
    has = tvm.get_global_func("target.target_has_feature")
    if kind == "llvm" and uses_tiles(parsed) and not has("avx512bf16", parsed):
        raise TargetError(
            "mattr has +amx-bf16, whose products need the vector instructions of avx512bf16 beside "
            'them; name a processor that has both, such as mcpu="sapphirerapids"'
        )
    return parsed


def is_generic(resolved: tvm.target.Target) -> bool:
    """Whether an llvm target names neither a processor nor features of one."""
    attributes = resolved.attrs
    return str(resolved.kind.name) == "llvm" and not (
        attributes.get("mcpu") or attributes.get("mattr")
    )


def _resolve_gpu(
    spec: str | Mapping[str, Any] | tvm.target.Target,
) -> str | Mapping[str, Any] | tvm.target.Target:
    """A CUDA target with an architecture: that of this machine's GPU if it names none.

    Other targets are returned as they are. TVM's default architecture is so old that no present
    compiler supports it; and of a wrong name, TVM says only that it cannot parse it.

    Raises
    ------
    TargetError
        It names one that is not served, or none where this machine has no GPU.
    """
    config: Any = {"kind": spec} if spec == "cuda" else spec
    if isinstance(spec, str) and spec in ARCHITECTURES:
        return {"kind": "cuda", "arch": ARCHITECTURES[spec]}
    if isinstance(spec, str) and spec.lstrip().startswith("{"):
        with contextlib.suppress(ValueError):  # TVM will say what is wrong with it
            config = json.loads(spec)
    if not isinstance(config, Mapping) or config.get("kind") != "cuda":
        return spec
    if "arch" in config:
        check_architecture(str(config["arch"]))
        return spec
    absence = cuda_absence()
    if absence:
        raise TargetError(
            "a cuda target without an arch means this machine's GPU, but there is none to ask: "
            f"{absence}. To compile for another machine, name its architecture, such as "
            '{"kind": "cuda", "arch": "sm_90"}'
        )
    return {**config, "arch": cuda_architecture()}


def _resolve_host(parsed: tvm.target.Target) -> tvm.target.Target:
    """An llvm target with this host's processor, cores and optimization where it names none.

    A target of another architecture is returned as it is.
    """
    config = {name: value for name, value in parsed.export().items() if name != "tag"}
    triple = str(config.get("mtriple", ""))
    processor = str(config.get("mcpu", ""))
    if _is_foreign(triple):
        return parsed
    host_processor = str(tvm.get_global_func("target.llvm_get_system_cpu")())
    if not processor and "mattr" not in config:
        config["mcpu"] = host_processor
        # A virtual machine may hide features that the processor's name implies.
        missing = missing_features(tvm.target.Target(config))
        if missing:
            config["mattr"] = [f"-{feature}" for feature in missing]
    elif processor and not tvm.get_global_func("target.llvm_is_valid_cpu")(
        processor, triple or _system_triple()
    ):
        raise TargetError(
            f"the processor mcpu={processor!r} is unknown; this host is {host_processor!r}"
        )
    config.setdefault("num-cores", threads())
    config.setdefault("opt-level", _OPT_LEVEL)
    return tvm.target.Target(config)


def _system_triple() -> str:
    return str(tvm.get_global_func("target.llvm_get_system_triple")())


def _is_foreign(triple: str) -> bool:
    """Whether an LLVM triple, such as ``aarch64-linux-gnu``, is of another architecture."""
    return bool(triple) and _architecture(triple) != _architecture(_system_triple())


def _architecture(triple: str) -> str:
    return triple.split("-", maxsplit=1)[0]
