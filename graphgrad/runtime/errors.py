"""The errors of an exported step."""

import tvm_ffi

# So that Ctrl-C keeps its type where TVM has called Python, as a packed function.
tvm_ffi.register_error(KeyboardInterrupt)


class ExportedStepError(RuntimeError):
    """Base of the errors of an exported step."""


class FolderError(ExportedStepError):
    """An export is missing, incomplete or damaged."""


class MachineError(ExportedStepError):
    """This machine cannot run the export: no such processor, GPU, driver or TVM, or it failed."""


class OutOfMemoryError(MachineError):
    """The device has too little memory; nothing has changed."""


class InputError(ExportedStepError):
    """Something that was handed in does not fit; nothing has changed."""


class StateError(ExportedStepError):
    """A state file is missing, damaged or of another model, or cannot be written."""


class FactsError(StateError):
    """JSON cannot hold the facts that were to be written into a state file."""
