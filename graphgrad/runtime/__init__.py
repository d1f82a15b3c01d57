"""Run an exported training step with TVM's runtime alone: no compiler, no graphgrad.

This package is copied into every export. It needs TVM's runtime, numpy and safetensors:

    from exported_step import ExportedStep

    step = ExportedStep("folder")
    loss = step(inputs, targets)

Set ``TVM_USE_RUNTIME_LIB=1`` where TVM's compiler is installed and should not be loaded.
`set_threads` chooses how many threads compute; by default as many as there are cores.
"""

from .errors import (
    ExportedStepError,
    FolderError,
    InputError,
    MachineError,
    OutOfMemoryError,
    StateError,
)
from .step import ExportedStep
from .threads import set_threads

__all__ = [
    "ExportedStep",
    "ExportedStepError",
    "FolderError",
    "InputError",
    "MachineError",
    "OutOfMemoryError",
    "StateError",
    "set_threads",
]
