"""The device that a target's code runs on."""

from __future__ import annotations

import tvm

from ..errors import TargetError


def device_of(target: tvm.target.Target) -> tvm.runtime.Device:
    """Return the first device of a target's kind.

    Raises
    ------
    TargetError
        The machine has no such device.
    """
    device = tvm.device_from_target(target)
    if not device.exist:
        raise TargetError(f"this machine has no {target.kind.name} device to run on")
    return device
