"""Body evaluations of derived gradients, beside those of the best gradient written by hand.

A convolution of rank d has N images of C channels and extent H, K filters of extent R, stride s,
padding p, dilation δ and g groups; its output has extent Y. By hand,

    forward   N·K·(C/g)·(Y·R)^d
    dX        N·K·(C/g)·F^d with F = Σ_x #{r : s divides x + p - δ·r}, so F = H·R for s = 1
    dW        N·K·(C/g)·(Y·R)^d

A border of zeros counts, zeros between strides do not. Of a transposed convolution, all three are
N·K·(C/g)·(H·R)^d, and of an einsum the product of all its extents.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import repository  # noqa: F401  the tests can be imported from here on
from tvm import te, topi

import graphgrad as gg
from tests.fallback.body_evaluations import body_evaluations, contraction_points
from tests.fallback.contractions import Convolution, einsum

Graph = tuple[te.Tensor, list[te.Tensor]]


@dataclass(frozen=True)
class Contraction:
    """A sum of products, and how many products a gradient by each operand takes by hand."""

    name: str
    build: Callable[[], Graph]
    forward: int
    by_hand: tuple[int, ...]


def convolution(name: str, **sizes: Any) -> Contraction:
    """Return a convolution; `sizes` are those of `Convolution`."""
    layer = Convolution(dtype="float32", **sizes)
    return Contraction(name, layer.tensors, layer.points, (layer.data_points, layer.points))


def einstein(name: str, spec: str, **extents: int) -> Contraction:
    """Return a contraction by numpy's notation."""
    points = 1
    for extent in extents.values():
        points *= extent
    operands = spec.count(",") + 1
    return Contraction(
        name, lambda: einsum(spec, "float32", **extents), points, (points,) * operands
    )


CONTRACTIONS = [
    convolution("conv1d k3", rank=1, size=32),
    convolution("conv1d k5 s2", rank=1, size=32, kernel=5, padding=2, stride=2),
    convolution("conv1d k3 s3", rank=1, size=33, stride=3),
    convolution("conv1d k3 δ2", rank=1, size=32, padding=2, dilation=2),
    convolution("conv2d k1", size=16, kernel=1, padding=0),
    convolution("conv2d k1 s2", size=16, kernel=1, padding=0, stride=2),
    convolution("conv2d k3", size=16),
    convolution("conv2d k3 valid", size=16, padding=0),
    convolution("conv2d k3 s2", size=16, stride=2),
    convolution("conv2d k3 s2 valid", size=17, padding=0, stride=2),
    convolution("conv2d k3 s3", size=18, stride=3),
    convolution("conv2d k4 s2", size=16, kernel=4, stride=2),
    convolution("conv2d k7 s2", size=16, kernel=7, padding=3, stride=2),
    convolution("conv2d k3 δ2", size=16, padding=2, dilation=2),
    convolution("conv2d k3 δ3", size=16, padding=3, dilation=3),
    convolution("conv2d k3 s2 δ2", size=17, padding=2, stride=2, dilation=2),
    convolution("conv2d k2 s2 valid", size=16, kernel=2, padding=0, stride=2),
    convolution("conv2d k2 s3 valid", size=18, kernel=2, padding=0, stride=3),
    convolution("conv2d k3 g2", size=16, channels=4, filters=6, groups=2),
    convolution("conv2d k3 s2 g2", size=16, channels=4, filters=6, groups=2, stride=2),
    convolution("depthwise k3", size=16, channels=6, filters=6, groups=6),
    convolution("depthwise k3 s2", size=16, channels=6, filters=6, groups=6, stride=2),
    convolution("conv3d k3", rank=3, size=8),
    convolution("conv3d k3 s2", rank=3, size=8, stride=2),
    convolution("conv3d k3 s2 g2", rank=3, size=8, stride=2, channels=4, groups=2),
    convolution("transposed 1d k2 s3", transposed=True, rank=1, kernel=2, padding=0, stride=3),
    convolution("transposed 2d k3", transposed=True, size=8),
    convolution("transposed 2d k4 s2", transposed=True, size=8, kernel=4, stride=2),
    convolution("transposed 2d k3 s2 g2", transposed=True, channels=4, stride=2, groups=2),
    convolution("transposed 3d k3 s2", transposed=True, rank=3, size=4, stride=2),
    einstein("matmul NN", "ik,kj->ij", i=24, j=32, k=16),
    einstein("matmul NT", "ik,jk->ij", i=24, j=32, k=16),
    einstein("matmul TN", "ki,kj->ij", i=24, j=32, k=16),
    einstein("matmul batched", "bik,bkj->bij", b=4, i=12, j=16, k=8),
    einstein("matmul, B shared", "bik,kj->bij", b=4, i=12, j=16, k=8),
    einstein("outer product", "i,j->ij", i=24, j=32),
    einstein("bilinear form", "bi,ij,bj->b", b=4, i=12, j=16),
    einstein("attention scores", "bqhd,bkhd->bhqk", b=2, q=8, h=4, d=16, k=8),
]


def measure(case: Contraction) -> dict[str, Any]:
    """Return the body evaluations of the gradients of a contraction."""
    output, inputs = case.build()
    head = te.placeholder(output.shape, str(output.dtype), name="ct")
    derived = [contraction_points(g) for g in gg.te_gradient(output, inputs, head)]
    return {
        "contraction": case.name,
        "forward": case.forward,
        "by_hand": list(case.by_hand),
        "derived": derived,
        "ratios": [d / h for d, h in zip(derived, case.by_hand, strict=True)],
    }


def _pool(kind: str, kernel: int, stride: int, padding: int = 0) -> Graph:
    data = te.placeholder((2, 4, 16, 16), "float32", name="X")
    window = [kernel, kernel], [stride, stride], [1, 1], [padding] * 4
    return topi.nn.pool2d(data, *window, kind), [data]


def _taken() -> Graph:
    table = te.placeholder((100, 16), "float32", name="T")
    rows = te.placeholder((32,), "int32", name="rows")
    return topi.take(table, rows, axis=0), [table]


def _resized() -> Graph:
    data = te.placeholder((1, 4, 8, 8), "float32", name="X")
    size = [16, 16]
    return topi.image.resize2d(data, [0.0] * 4, size), [data]


OTHERS: dict[str, Callable[[], Graph]] = {
    "avg_pool 2×2 s2": lambda: _pool("avg", 2, 2),
    "avg_pool 3×3 s2 p1": lambda: _pool("avg", 3, 2, 1),
    "avg_pool 3×3 s1 p1": lambda: _pool("avg", 3, 1, 1),
    "max_pool 2×2 s2": lambda: _pool("max", 2, 2),
    "max_pool 3×3 s2 p1": lambda: _pool("max", 3, 2, 1),
    "take rows": _taken,
    "resize2d ×2, linear": _resized,
}
"""What is no contraction: pooling, and reads at positions that depend on data."""


def measure_other(name: str) -> dict[str, Any]:
    """Return all body evaluations of a graph and of its gradient."""
    output, inputs = OTHERS[name]()
    head = te.placeholder(output.shape, str(output.dtype), name="ct")
    gradients = gg.te_gradient(output, inputs, head)
    return {
        "graph": name,
        "forward": _total(output),
        "gradient": _total(*gradients),
        "stages": [
            [work.name, str(work.kind.value) if work.kind else "", work.points]
            for work in body_evaluations(*gradients)
        ],
    }


def _total(*tensors: te.Tensor) -> int:
    return sum(work.points for work in body_evaluations(*tensors))


def markdown(contractions: Sequence[dict[str, Any]], others: Sequence[dict[str, Any]]) -> str:
    """Return both tables."""
    lines = [
        "| contraction | forward | by operand: derived | by hand | ratio |",
        "|---|---:|---:|---:|---:|",
    ]
    for row in contractions:
        derived, by_hand = (" / ".join(f"{n:,}" for n in row[k]) for k in ("derived", "by_hand"))
        ratios = " / ".join(f"{ratio:.2f}" for ratio in row["ratios"])
        lines.append(
            f"| {row['contraction']} | {row['forward']:,} | {derived} | {by_hand} | {ratios} |"
        )
    lines += ["", "| graph | forward | gradient | ratio |", "|---|---:|---:|---:|"]
    for row in others:
        ratio = row["gradient"] / row["forward"]
        lines.append(f"| {row['graph']} | {row['forward']:,} | {row['gradient']:,} | {ratio:.2f} |")
    return "\n".join(lines)
