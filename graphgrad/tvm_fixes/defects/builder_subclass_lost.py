import tvm_ffi
from tvm import relax

from ..ledger import Defect


class Builder(relax.BlockBuilder):
    pass


def shows() -> bool:
    found = []
    tvm_ffi.convert(found.append)(Builder())
    return type(found[0]) is not Builder


DEFECT = Defect(
    title="[FFI] A subclass of BlockBuilder is lost where it passes through the FFI",
    kind="missing API",
    happens=(
        "What a packed function is handed is a plain BlockBuilder: a legalization cannot be "
        "given a builder that records what it writes, short of patching the class."
    ),
    expected="The Python object itself; or a hook of BlockBuilder for what call_te writes.",
    worked_around_in=("graphgrad.ops.call_te",),
)
