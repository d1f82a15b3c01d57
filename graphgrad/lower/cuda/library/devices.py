"""Properties of GPUs that plans are made for, written by hand, as cuDNN wants to know them.

cuDNN's choice of a plan depends on few of them: it was the same for other clocks and sizes of the
cache. Values: NVIDIA's data sheets, and for the keys XLA's ``xla/backends/gpu/target_config``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_COMMON = {
    "warpSize": 32,
    "maxSharedMemoryPerBlock": 49152,
    "reservedSharedMemoryPerBlock": 1024,
    "maxRegistersPerSM": 65536,
    "maxCtasPerSM": 32,
    "maxThreadsPerBlock": 1024,
    "maxThreadsPerSM": 2048,
    "regsPerBlock": 65536,
    "maxBlockSize": [1024, 1024, 64],
    "maxGridSize": [2147483647, 65535, 65535],
    "supportCoopLaunch": 1,
    "smCountOrigin": 0,
    "oversizedSharedMemoryPerBlock": 0,
    "pciDeviceId": 0,
    "isTccDriver": 0,
    "cudaDeviceId": 0,
    "driverVer": 13000,
}

PROFILES: Mapping[str, Mapping[str, Any]] = {
    "h200": {
        **_COMMON,
        "deviceName": "NVIDIA H200",
        "deviceVer": 900,
        "multiProcessorCount": 132,
        "maxSharedMemoryPerBlockOptin": 232448,
        "totalGlobalMem": 150754820096,
        "l2CacheSize": 62914560,
        "smClockRateKHz": 1980000,
        "memClockRateKHz": 3201000,
        "memoryBusWidth": 6144,
    },
    "a100": {
        **_COMMON,
        "deviceName": "NVIDIA A100-SXM4-80GB",
        "deviceVer": 800,
        "multiProcessorCount": 108,
        "maxSharedMemoryPerBlockOptin": 166912,
        "totalGlobalMem": 85094432768,
        "l2CacheSize": 41943040,
        "smClockRateKHz": 1410000,
        "memClockRateKHz": 1593000,
        "memoryBusWidth": 5120,
    },
}
"""The properties by the name of a GPU."""

ARCHITECTURES = {"h200": "sm_90", "a100": "sm_80"}
"""Their architectures."""


def profile_of(arch: str) -> Mapping[str, Any] | None:
    """The properties of the GPU that stands for an architecture; None if none does."""
    named = {architecture: name for name, architecture in ARCHITECTURES.items()}
    name = named.get(arch.removesuffix("a"))
    return None if name is None else PROFILES[name]


def capability_of(properties: Mapping[str, Any]) -> int:
    """The compute capability of a GPU, such as 90."""
    return int(properties["deviceVer"]) // 10
