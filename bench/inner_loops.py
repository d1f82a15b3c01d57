"""What the inner loops of contractions are made of, in machine code for other processors.

    python bench/inner_loops.py
    python bench/inner_loops.py --target '{"kind": "llvm", "mcpu": "haswell"}'

Compiles contractions and counts the instructions of the loop with the most multiply-adds: how many
these are, and how many access the stack. It runs nothing, so any target will do; the default is a
Neoverse N1 (NEON), of which there is no machine to measure on.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from table import table
from tvm import te

import graphgrad as gg
from graphgrad.fallback import create_prim_func
from graphgrad.lower.cpu.schedule import schedule_loops
from graphgrad.lower.cpu.tuning import processor_of

NEON = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-n1"}

_MULTIPLY_ADD = re.compile(r"fmla|vfn?madd\d*p")
_STACK = re.compile(r"\[sp\b|\(%rsp\)")


@dataclass(frozen=True)
class Loop:
    """An innermost loop of machine code.

    Attributes
    ----------
    instructions, multiply_adds, stack : int
        How many there are, how many multiply and add vectors, and how many access the stack.
    """

    instructions: int
    multiply_adds: int
    stack: int

    @property
    def share(self) -> float:
        """The share of multiply-adds."""
        return self.multiply_adds / self.instructions


def product(n: int = 512) -> list[te.Tensor]:
    """A matrix product."""
    x, w = _matrix(n), _matrix(n)
    return _summed([x, w], (n, n), n, lambda i, j, k: x[i, k] * w[k, j])


def product_with_transposed(n: int = 512) -> list[te.Tensor]:
    """A product with a transposed matrix: the gradient of a layer's data."""
    x, w = _matrix(n), _matrix(n)
    return _summed([x, w], (n, n), n, lambda i, j, k: x[i, k] * w[j, k])


def product_of_transposed(n: int = 512) -> list[te.Tensor]:
    """A product of a transposed matrix: the gradient of a layer's weights."""
    x, w = _matrix(n), _matrix(n)
    return _summed([x, w], (n, n), n, lambda i, j, k: x[k, i] * w[k, j])


def convolution(n: int = 56, channels: int = 64) -> list[te.Tensor]:
    """A convolution of images with channels last, with windows of 3 by 3."""
    x = te.placeholder((1, n + 2, n + 2, channels), "float32", "x")
    w = te.placeholder((3, 3, channels, channels), "float32", "w")
    axes = [
        te.reduce_axis((0, extent), name) for extent, name in ((3, "r"), (3, "s"), (channels, "c"))
    ]
    r, s, c = axes
    y = te.compute(
        (1, n, n, channels),
        lambda b, i, j, f: te.sum(x[b, i + r, j + s, c] * w[r, s, c, f], axis=axes),
    )
    return [x, w, y]


CASES: dict[str, Callable[[], list[te.Tensor]]] = {
    "x · w": product,
    "x · wᵀ": product_with_transposed,
    "xᵀ · w": product_of_transposed,
    "3 × 3 convolution": convolution,
}


def _matrix(n: int) -> te.Tensor:
    return te.placeholder((n, n), "float32")


def _summed(
    inputs: Sequence[te.Tensor], shape: Sequence[int], terms: int, term: Callable[..., Any]
) -> list[te.Tensor]:
    k = te.reduce_axis((0, terms), "k")
    return [*inputs, te.compute(shape, lambda i, j: te.sum(term(i, j, k), axis=k))]


def inner_loop(tensors: Sequence[te.Tensor], target: tvm.target.Target) -> Loop:
    """The inner loop of a contraction's kernel, as it is compiled for a target."""
    kernel = schedule_loops(create_prim_func(list(tensors)), processor_of(target), winograd=False)
    assembly = str(tvm.compile(kernel, target=target).mod.inspect_source("asm"))
    blocks = re.split(r"^\S+:", assembly, flags=re.MULTILINE)
    block = max(blocks, key=lambda text: len(_MULTIPLY_ADD.findall(text)))
    lines = [line.strip() for line in block.splitlines()]
    lines = [line for line in lines if line and not line.startswith((".", "#", "//"))]
    # A block ends with the branch to its beginning; what follows without a label is run once.
    end = next(i for i, line in enumerate(lines) if re.match(r"b\.\w+|j\w+|cbn?z|tbn?z", line))
    loop = lines[: end + 1]
    return Loop(
        len(loop),
        sum(bool(_MULTIPLY_ADD.match(line)) for line in loop),
        sum(bool(_STACK.search(line)) for line in loop),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--target", type=json.loads, default=NEON)
    target = gg.target(parser.parse_args().target)
    rows = []
    for name, case in CASES.items():
        loop = inner_loop(case(), target)
        counts = (loop.multiply_adds, loop.instructions, f"{loop.share:.0%}", loop.stack)
        rows.append([name, *map(str, counts)])
    print(table(["contraction", "multiply-adds", "of instructions", "share", "of the stack"], rows))


if __name__ == "__main__":
    main()
