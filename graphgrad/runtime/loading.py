"""Libraries loaded into the process, until nothing uses them any more."""

from __future__ import annotations

import os

import tvm
import tvm_ffi


def load_library(
    path: str | os.PathLike[str], device: tvm.runtime.Device | None = None
) -> tvm.runtime.Module:
    """The module of a library, which is unloaded when its last user is gone.

    TVM's own ``tvm.runtime.load_module`` never unloads one. Each function of a module holds it, and
    so does each virtual machine, so no code goes while it can still be called. What it has returned
    needs it no longer: tensors are allocated and freed by TVM's runtime.

    Parameters
    ----------
    path : path
    device : Device, optional
        Where its kernels run; by default the host. A library for a GPU stays, because the GPU may
        have some of its kernels queued when the last user goes.

    Raises
    ------
    RuntimeError
        It does not load.
    """
    stays = device is not None and device.type != "cpu"
    return tvm_ffi.load_module(os.fspath(path), keep_module_alive=stays)
