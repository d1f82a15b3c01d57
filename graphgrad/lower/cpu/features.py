"""The processor features that generated code may use, and those that this machine lacks.

LLVM names the host by family and model. A virtual machine may show the model of its host and
hide what that can do: a Zen 4 without AVX-512 is common, and code for a Zen 4 ends the process
there.
"""

from __future__ import annotations

import tvm

from ...runtime.machine import TILES, processor_flags

_LINUX_FLAGS = {
    "sse3": "pni",
    "ssse3": "ssse3",
    "sse4.1": "sse4_1",
    "sse4.2": "sse4_2",
    "sse4a": "sse4a",
    "popcnt": "popcnt",
    "avx": "avx",
    "f16c": "f16c",
    "fma": "fma",
    "fma4": "fma4",
    "xop": "xop",
    "tbm": "tbm",
    "avx2": "avx2",
    "bmi": "bmi1",
    "bmi2": "bmi2",
    "lzcnt": "abm",
    "movbe": "movbe",
    "gfni": "gfni",
    "avx512f": "avx512f",
    "avx512bw": "avx512bw",
    "avx512cd": "avx512cd",
    "avx512dq": "avx512dq",
    "avx512vl": "avx512vl",
    "avx512ifma": "avx512ifma",
    "avx512vbmi": "avx512vbmi",
    "avx512vbmi2": "avx512_vbmi2",
    "avx512vnni": "avx512_vnni",
    "avx512bf16": "avx512_bf16",
    "avx512fp16": "avx512_fp16",
    "avx512bitalg": "avx512_bitalg",
    "avx512vpopcntdq": "avx512_vpopcntdq",
    "avxvnni": "avx_vnni",
}
"""Features of x86 processors: from LLVM's names to those in Linux's /proc/cpuinfo."""

_TILES = {"amx-bf16": TILES, "amx-tile": "amx_tile"}
"""The same of tile registers, which code uses only where its target says so."""


def uses_tiles(target: tvm.target.Target) -> bool:
    """Whether an llvm target asks for products in tile registers: not by its processor's name.

    Of features that are given and taken away, the last mention counts, as for LLVM.
    """
    mentions = [str(each) for each in target.attrs.get("mattr", ()) if str(each)[1:] == "amx-bf16"]
    return mentions[-1:] == ["+amx-bf16"]


def used_features(target: tvm.target.Target) -> dict[str, str]:
    """The features that code for an llvm target may use: from LLVM's name of each to Linux's."""
    feature_names = {
        str(name) for name in tvm.get_global_func("target.llvm_get_cpu_features")(target)
    }
    used = {llvm: linux for llvm, linux in _LINUX_FLAGS.items() if llvm in feature_names}
    return used | _TILES if uses_tiles(target) else used


def missing_features(target: tvm.target.Target) -> list[str]:
    """LLVM's names of the features that code for an llvm target may use and this machine lacks.

    Returns
    -------
    list of str
        Empty if nothing is missing, and also where the system does not list its features.
    """
    flags = processor_flags()
    # Without flags nothing is known of the machine, and nothing is reported as missing.
    return [llvm for llvm, linux in used_features(target).items() if flags and linux not in flags]
