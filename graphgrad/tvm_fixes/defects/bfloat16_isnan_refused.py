from tvm import te, tirx

from ..ledger import Defect


def shows() -> bool:
    x = te.placeholder((1,), "bfloat16", name="x")
    try:
        te.compute((1,), lambda i: tirx.isnan(x[i]), name="y")
    except Exception as error:
        return "not supported for isnan" in str(error)
    return False


DEFECT = Defect(
    title="[TIR] tirx.isnan refuses bfloat16",
    kind="refusal",
    happens="`Data type bfloat16 not supported for isnan op`.",
    expected="Whether the number is NaN, as for float16.",
    worked_around_in=(
        "graphgrad.ops.pool",
        "graphgrad.ops.sorting",
    ),
)
