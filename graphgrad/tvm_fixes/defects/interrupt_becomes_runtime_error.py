import tvm_ffi

from ..ledger import Defect


def shows() -> bool:
    def interrupted() -> None:
        raise KeyboardInterrupt  # as Ctrl-C does, in whatever line of Python it finds

    try:
        tvm_ffi.convert(interrupted)()
    except KeyboardInterrupt:
        return False
    except RuntimeError:
        return True
    return False


DEFECT = Defect(
    title="[FFI] Ctrl-C inside a Python function that TVM calls becomes RuntimeError('')",
    kind="wrong result",
    happens=(
        "Exceptions whose class is not registered come back as RuntimeError, and "
        "KeyboardInterrupt and SystemExit are not registered. So a program that goes on after "
        "errors of compilation cannot be stopped while a pass or a lowering written in Python runs."
    ),
    expected="`tvm_ffi` registers both, as it does ValueError and others.",
    worked_around_in=("graphgrad.errors", "graphgrad.runtime.errors"),
)
