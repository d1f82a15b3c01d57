from tvm import te

from ..ledger import Defect


def shows() -> bool:
    state = te.placeholder((4,), "float32", name="state")
    start = te.compute((1,), lambda t: te.const(1.0, "float32"))
    step = te.compute((4,), lambda t: state[t - 1] * 2.0)
    scan = te.scan(start, step, state)
    try:
        te.create_prim_func([scan])
    except Exception as error:
        return "Unsupported Operation: te.ScanOp" in str(error)
    return False


DEFECT = Defect(
    title="[TE] te.scan can be built, but create_prim_func refuses it",
    kind="refusal",
    happens=(
        "`Unsupported Operation: te.ScanOp. Only te.placeholder and te.compute are allowed "
        "for now.`"
    ),
    expected=(
        "A scan becomes a loop over its steps, as it did before `te.create_schedule` was "
        "removed; or `te.scan` goes too."
    ),
    worked_around_in=("graphgrad.fallback.lowering.scans",),
)
