"""The device function by which a warp multiplies tiles in shared memory on tensor cores.

It is CUDA C with two PTX instructions (PTX ISA, "Warp-level matrix instructions"): `ldmatrix` reads
fragments of the operands, `mma.sync` multiplies them and adds the products to float32 sums. A
*step* is what one `mma.sync` takes of the terms: 32 bytes of each row, 16 halves or 8 of TF32.

A tile of an operand stands in memory in one of two orders, in *chunks* of 16 bytes:

- along terms: a row of the tile has `STAGE_CHUNKS` chunks of neighboring terms;
- along rows: a term of the tile has chunks of neighboring rows.

The chunks of a line are rotated in both (`rotated`), so that the 8 chunks that the hardware reads
or writes at once are in different banks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.backend.cuda.op import cuda_func_call
from tvm.ir import StringImm

from ....ir.tensor import bits

TF32 = "tf32"
"""float32 rounded to 10 bits of mantissa, as tensor cores read it."""

HALVES = ("bfloat16", "float16")

CHUNK_BYTES = 16
"""What one thread moves at once."""

STEPS = 2
"""Steps of a stage, for which operands are copied to shared memory at a time."""

STAGE_CHUNKS = 2 * STEPS
"""Chunks along the terms of a stage."""

FRAGMENT = (16, 8)
"""Rows and columns of the results of an `mma.sync`."""

_PTX_TYPES = {"bfloat16": "bf16", "float16": "f16", TF32: "tf32"}

_MULTIPLICATION = re.compile(r"graphgrad_mma_([a-z]+\d+)_\w+_(\d+)x(\d+)")
"""Names of the functions: the type of the operands, their layouts, the rows and the columns."""

_ROUNDING = "graphgrad_tf32"

_ROUNDING_SOURCE = f"""
__forceinline__ __device__ float {_ROUNDING}(float value) {{
  unsigned rounded;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(value));
  return __uint_as_float(rounded);
}}
"""


def stored_dtype(number: str) -> str:
    """The dtype in which a number of an operand is held."""
    return "float32" if number == TF32 else number


def chunk_elements(number: str) -> int:
    """Numbers of a chunk."""
    return CHUNK_BYTES * 8 // bits(stored_dtype(number))


def rounded(value: Any) -> Any:
    """A float32 rounded to TF32, ties away from zero, as `cvt.rna.tf32.f32` does."""
    return cuda_func_call(_ROUNDING, value, source_code=_ROUNDING_SOURCE, return_type="float32")


@dataclass(frozen=True)
class Layout:
    """How a tile of an operand stands in shared memory.

    Attributes
    ----------
    number : str
        What it holds: one of `HALVES`, or `TF32`.
    rows : int
        Of the tile: rows of the result for the left operand, columns for the right one.
    along_terms : bool
    """

    number: str
    rows: int
    along_terms: bool

    @property
    def lines(self) -> int:
        """How many rows, or terms, of chunks it has."""
        return self.rows if self.along_terms else STAGE_CHUNKS * chunk_elements(self.number)

    @property
    def chunks(self) -> int:
        """Chunks of a line."""
        return STAGE_CHUNKS if self.along_terms else self.rows // chunk_elements(self.number)

    @property
    def elements(self) -> int:
        """Numbers of the tile."""
        return self.lines * self.chunks * chunk_elements(self.number)

    @property
    def reads_words(self) -> bool:
        """Whether fragments are read word by word: `ldmatrix` transposes 16 bits only."""
        return self.number == TF32 and not self.along_terms

    def rotated(self, line: Any, chunk: Any) -> Any:
        """Where a chunk of a line stands among its chunks."""
        if self.reads_words:
            # Threads of a warp read two neighboring chunks of four lines.
            turn = tirx.floormod(line, 4) * 2
        else:
            # Eight lines are read at the same chunk; several short ones fill a row of banks.
            turn = tirx.floordiv(line, max(8 // self.chunks, 1))
        return tirx.floormod(chunk + turn, self.chunks)

    def rotated_text(self, line: str, chunk: str) -> str:
        """`rotated` in CUDA C."""
        turn = f"{line} % 4 * 2" if self.reads_words else f"{line} / {max(8 // self.chunks, 1)}"
        return f"({chunk} + {turn}) % {self.chunks}"

    @property
    def name(self) -> str:
        """In names of functions."""
        return f"{'terms' if self.along_terms else 'rows'}{self.rows}"


@dataclass(frozen=True)
class Warp:
    """What a warp computes of a block's tile of results."""

    left: Layout
    right: Layout
    rows: int
    columns: int

    @property
    def sums(self) -> int:
        """Sums that a thread holds."""
        return self.rows * self.columns // 32

    def multiply(self, sums: Any, tiles: Sequence[Any], first: Sequence[Any]) -> Any:
        """The call by which a warp adds the products of a stage to its sums.

        Parameters
        ----------
        sums : Expr
            Address of the registers. The sum of row r and column c of fragment (i, j) is number
            ``4 (i · fragments in a row + j) + 2 (r / 8) + c % 2`` of lane ``4 (r % 8) + c / 2``.
        tiles : sequence of Expr
            Addresses of the left and the right tile.
        first : sequence of Expr
            First row and column of the warp in the block's tile.
        """
        name = f"graphgrad_mma_{_PTX_TYPES[self.left.number]}_{self.left.name}_{self.right.name}"
        name += f"_{self.rows}x{self.columns}"
        return cuda_func_call(name, sums, *tiles, *first, source_code=self._source(name))

    def _source(self, name: str) -> str:
        kind = _PTX_TYPES[self.left.number]
        shape = "m16n8k8" if self.left.number == TF32 else "m16n8k16"
        rows, columns = (self.rows // FRAGMENT[0], self.columns // FRAGMENT[1])
        left = _fragments(self.left, "left", "a[i]", "row + i * 16", _LEFT)
        right = _fragments(self.right, "right", "b[j]", "column + j * 16", _RIGHT)
        return f"""
__forceinline__ __device__ void {name}(
    float* sums, const void* left, const void* right, int row, int column) {{
  const int lane = threadIdx.x % 32;
  #pragma unroll
  for (int step = 0; step < {STEPS}; ++step) {{
    unsigned a[{rows}][4], b[{columns // 2}][4];
    #pragma unroll
    for (int i = 0; i < {rows}; ++i) {{
{left}    }}
    #pragma unroll
    for (int j = 0; j < {columns // 2}; ++j) {{
{right}    }}
    #pragma unroll
    for (int i = 0; i < {rows}; ++i) {{
      #pragma unroll
      for (int j = 0; j < {columns}; ++j) {{
        float* c = sums + (i * {columns} + j) * 4;
        const unsigned* d = b[j / 2] + j % 2 * 2;
        asm("mma.sync.aligned.{shape}.row.col.f32.{kind}.{kind}.f32 "
            "{{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[i][0]), "r"(a[i][1]), "r"(a[i][2]), "r"(a[i][3]), "r"(d[0]), "r"(d[1]));
      }}
    }}
  }}
}}
"""


def multiplied(call: Any) -> tuple[str, int] | None:
    """What a call of `Warp.multiply` multiplies: numbers, and operations; None for other calls."""
    name = str(call.args[0].value) if call.args and isinstance(call.args[0], StringImm) else ""
    match = _MULTIPLICATION.fullmatch(name)
    if match is None:
        return None
    number = next(number for number, kind in _PTX_TYPES.items() if kind == match[1])
    terms = STAGE_CHUNKS * chunk_elements(number)
    return number, 2 * int(match[2]) * int(match[3]) * terms


@dataclass(frozen=True)
class _Order:
    """Whether one of a fragment's four 8 by 8 matrices is of the next rows, or terms."""

    row: str
    term: str


_LEFT = _Order(row="lane / 8 % 2", term="lane / 16")
_RIGHT = _Order(row="lane / 16", term="lane / 8 % 2")


def _fragments(layout: Layout, tile: str, into: str, row: str, order: _Order) -> str:
    """The statements by which a warp reads 16 rows and the terms of a step of a tile.

    Numbers of 32 bits are to `ldmatrix` pairs of 16 bits, which stay together.
    """
    if layout.reads_words:
        row_in, term_in = order.row.replace("lane", "8 * n"), order.term.replace("lane", "8 * n")
        return f"""\
      #pragma unroll
      for (int n = 0; n < 4; ++n) {{
        const int r = {row} + {row_in} * 8 + lane / 4;
        const int k = step * 8 + {term_in} * 4 + lane % 4;
        const int place = (k * {layout.chunks} + {layout.rotated_text("k", "r / 4")}) * 4 + r % 4;
        {into}[n] = static_cast<const unsigned*>({tile})[place];
      }}
"""
    if layout.along_terms:
        line = f"{row} + {order.row} * 8 + lane % 8"
        chunk, transposed = f"step * 2 + {order.term}", ""
    else:
        line = f"step * 16 + {order.term} * 8 + lane % 8"
        chunk, transposed = f"({row}) / 8 + {order.row}", ".trans"
    return f"""\
      const int line = {line};
      const int place = line * {layout.chunks} + {layout.rotated_text("line", chunk)};
      asm volatile("ldmatrix.sync.aligned.m8n8.x4{transposed}.shared.b16 {{%0, %1, %2, %3}}, [%4];"
          : "=r"({into}[0]), "=r"({into}[1]), "=r"({into}[2]), "=r"({into}[3])
          : "l"(__cvta_generic_to_shared(static_cast<const char*>({tile}) + place * {CHUNK_BYTES}))
          : "memory");
"""
