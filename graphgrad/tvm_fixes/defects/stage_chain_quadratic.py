import time

from tvm import te

from ..ledger import Defect


def longer(tensor):
    return te.compute((2,), lambda i: tensor[i] + 1.0)


def seconds(stages: int) -> float:
    x = tensor = te.placeholder((2,), "float32", name="x")
    for _ in range(stages):
        tensor = longer(tensor)
    start = time.process_time()
    te.create_prim_func([x, tensor])
    return time.process_time() - start


def shows() -> bool:
    seconds(10)
    return seconds(1600) > 8 * seconds(400)  # four times as many stages


DEFECT = Defect(
    title="[TE] create_prim_func takes time quadratic in the number of stages",
    kind="cost",
    happens=(
        "Four times as many stages of a chain take some 16 times as long; the passes that "
        "follow are quadratic too, and 500 stages take over a minute to compile."
    ),
    expected="Time in proportion to the number of stages.",
    worked_around_in=("graphgrad.fallback.cut",),
)
