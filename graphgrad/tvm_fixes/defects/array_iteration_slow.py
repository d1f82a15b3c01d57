import sys

import tvm_ffi

from ..ledger import Defect


def shows() -> bool:
    array, calls = tvm_ffi.Array([1, 2, 3, 4]), 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    list(array)
    sys.setprofile(None)
    # One to begin, one for each item and one to end would be those of a generator.
    return calls > 2 * len(array)


DEFECT = Defect(
    title="[FFI] Iterating over an Array calls four functions of Python for each item",
    kind="cost",
    happens="`Array.__iter__` asks `self[i]`, which asks for the length again, looks whether the "
    "index is a slice, and brings an index into range that is in range: 1.0 µs an item, of which "
    "0.2 µs are TVM's.",
    expected="`ArrayGetItem` for each item; a pass over a large graph spends a tenth of its time "
    "there.",
    worked_around_in=("graphgrad.tvm_fixes.hooks",),
)
