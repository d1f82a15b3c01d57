"""Architectures of NVIDIA GPUs: which names there are, and which code runs on which device."""

from __future__ import annotations

import re

from ...errors import TargetError

_KNOWN = (75, 80, 86, 87, 88, 89, 90, 100, 101, 103, 110, 120, 121)
"""Ten times each compute capability, from the first that CUDA 13 supports. Those above the last
are accepted, and the compiler decides."""

_DEFAULT = "sm_50"
"""The architecture that TVM gives a Target which was made without one."""

_NAME = re.compile(r"sm_([1-9]\d?)(\d)([af]?)")
"""Major and minor version. An ``a`` is for that version alone, an ``f`` for its family: the same
major version, and this minor version or a later one."""


def check_architecture(name: str) -> None:
    """Raise unless `name` names an architecture that code can be made for.

    Raises
    ------
    TargetError
    """
    match = _NAME.fullmatch(name)
    number = int(match[1] + match[2]) if match else 0
    if not match or (number not in _KNOWN and number < _KNOWN[-1]):
        names = ", ".join(f"sm_{names}" for names in _KNOWN)
        origin = ", which TVM takes where none is given," if name == _DEFAULT else ""
        raise TargetError(
            f"the GPU architecture {name!r}{origin} is not served; those that are: {names}. Give "
            'one, such as {"kind": "cuda", "arch": "sm_90"}'
        )


def architecture_of(compute_version: str) -> str:
    """The architecture of a compute capability: ``"sm_90"`` for ``"9.0"``."""
    return "sm_" + compute_version.replace(".", "")


def compute_capability(name: str) -> int:
    """Ten times the compute capability of an architecture: 90 for ``"sm_90"``."""
    match = _NAME.fullmatch(name)
    assert match is not None
    return int(match[1] + match[2])


def runs_on(name: str, compute_version: str, ptx: bool = True) -> bool:
    """Whether code for an architecture runs on a device of a compute capability.

    Parameters
    ----------
    name : str
        The architecture.
    compute_version : str
        The compute capability, such as ``"9.0"``.
    ptx : bool
        Whether the code comes with PTX, which the driver of any later device translates. Machine
        code alone is for the same major version, and this minor version or a later one.
    """
    match = _NAME.fullmatch(name)
    assert match is not None
    made_for = int(match[1]), int(match[2])
    device = tuple(int(part) for part in compute_version.split("."))
    if match[3] == "a":
        return device == made_for
    if match[3] == "f" or not ptx:
        return device[0] == made_for[0] and device >= made_for
    return device >= made_for
