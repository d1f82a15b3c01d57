from tvm import relax

from ..ledger import Defect


def shows() -> bool:
    x, y = (relax.Var(name, relax.TensorType((n,), "float32")) for name, n in (("x", 2), ("y", 3)))
    call = relax.op.meshgrid([x, y], indexing="xy")
    grid, _ = relax.BlockBuilder().normalize(call).ty.fields
    return [int(extent) for extent in grid.shape] == [2, 3]


DEFECT = Defect(
    title='[Relax] The type of meshgrid with indexing="xy" is that of "ij"',
    kind="wrong result",
    happens="Of vectors of 2 and 3 elements the grids are typed (2, 3), and computed (3, 2).",
    expected="(3, 2).",
    worked_around_in=("graphgrad.registry.repetition",),
)
