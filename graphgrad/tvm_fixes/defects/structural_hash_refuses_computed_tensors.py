import tvm_ffi
from tvm import te

from ..ledger import Defect


def shows() -> bool:
    x = te.placeholder((4,), "float32", name="x")
    y = te.compute((4,), lambda i: x[i] + 1.0, name="y")
    try:
        tvm_ffi.structural_hash(y(0))
    except TypeError as error:
        return "te.ComputeOp" in str(error)
    return False


DEFECT = Defect(
    title="[FFI] structural_hash refuses expressions that read a computed tensor",
    kind="refusal",
    happens=(
        "`tvm_ffi.structural_hash` of a load raises `_type_s_eq_hash_kind is not set for type "
        "te.ComputeOp`, and so does whatever hashes expressions on the way, such as analyzes "
        "of bodies of `te.compute`."
    ),
    expected="A te.Operation is hashed by its identity, as a te.Tensor of a placeholder is.",
    worked_around_in=(
        "graphgrad.fallback.value_numbering",
        "graphgrad.fallback.indices.linear_system",
    ),
)
