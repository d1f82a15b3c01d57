"""The errors of graphgrad. Every error that a user can cause is one of these.

Each message names what was wrong (the op, the ONNX node, the input, the shapes) and what to do
next. All are raised before anything is computed or overwritten.
"""

from typing import Any

import tvm_ffi


class GraphGradError(RuntimeError):
    """Base of all errors of graphgrad.

    A RuntimeError, because those of TVM's passes are: code that catches theirs catches ours.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # So that an error keeps its type where it passes through TVM, from inside a pass.
        tvm_ffi.register_error(cls)


tvm_ffi.register_error(GraphGradError)


class _Exit(SystemExit):
    """An exit whose code TVM has kept as text."""

    def __init__(self, message: str):
        is_number = message.removeprefix("-").isdecimal()
        super().__init__(int(message) if is_number else message or None)


# So that Ctrl-C and an exit, which a signal may raise in any line of Python, keep their type where
# that line was called by TVM: a pass, a lowering, a packed function. Else they are RuntimeErrors.
tvm_ffi.register_error(KeyboardInterrupt)
tvm_ffi.register_error(SystemExit)
tvm_ffi.register_error("SystemExit", _Exit)


class ModelError(GraphGradError):
    """A model file or module cannot be read, imported or wrapped."""


class InputError(GraphGradError):
    """An array handed in has a wrong name, dtype, shape or value, or data are missing."""


class ArgumentError(GraphGradError):
    """An argument's value is unknown, or not served yet."""


class MissingGradientError(GraphGradError):
    """Some ops on the path of differentiation have no gradient. All of them are listed.

    Attributes
    ----------
    missing : list[tuple[str, list[str]]]
        Op name and the ONNX nodes (or binding names) where it occurs.
    """

    def __init__(self, message: str, missing: list[tuple[str, list[str]]] | None = None):
        super().__init__(message)
        self.missing = missing or []


class NotDifferentiableError(GraphGradError):
    """A gradient was asked for along a path that has none, by mathematics."""


class RuleError(GraphGradError):
    """A gradient rule was registered wrongly, or returned what does not fit its op."""


class GradientMismatch(GraphGradError):
    """A gradient disagrees with finite differences or with a peer.

    Attributes
    ----------
    op : str or None
        Name of the op, or of the function that was checked as a whole.
    node : str or None
        Name of the ONNX node.
    input : str or None
        Whose gradient is wrong.
    index : tuple of int or None
        The element of that input that is wrong by most.
    expected, given : float or None
        What differences and the gradient say there.
    kink : bool
        The function has a kink at that very point, so differences cannot judge its gradient.
    """

    def __init__(
        self,
        message: str,
        *,
        op: str | None = None,
        node: str | None = None,
        input: str | None = None,
        index: tuple[int, ...] | None = None,
        expected: float | None = None,
        given: float | None = None,
        kink: bool = False,
    ):
        super().__init__(message)
        self.op, self.node, self.input, self.index = op, node, input, index
        self.expected, self.given, self.kink = expected, given, kink


class TargetError(GraphGradError):
    """A compilation target is unknown or malformed, or no code can be generated for it."""


class LoweringError(GraphGradError):
    """A kernel cannot be made for its target: no schedule fits, or the device compiler refuses."""


class DeviceError(GraphGradError):
    """A device is missing, is not the one that code was compiled for, or has failed."""


class OutOfMemoryError(DeviceError):
    """A device has too little memory for what was asked; nothing has changed."""


class AliasError(GraphGradError):
    """A buffer that a step may overwrite overlaps another argument."""


class CheckpointError(GraphGradError):
    """A checkpoint is missing, damaged, or belongs to another model."""


class OutputError(GraphGradError):
    """A file cannot be written: no space, no permission, or something else stands at its place."""


class ExportError(GraphGradError):
    """An export cannot be written: the folder is no export, or the disk or the linker refuses."""
