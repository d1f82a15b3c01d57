"""Products of matrices of bfloat16 in tile registers, which some processors add up at once (AMX).

A tile register has up to 16 rows of 64 bytes. One instruction adds to a tile of float32 the product
of two tiles of pairs of bfloat16 (Intel 64 Architectures Manual, volume 2, ``TDPBF16PS``): sums of
the first and of the second numbers of all pairs, by fused multiply-adds, which are added to each
other, then to the tile. Numbers below float32's normal ones count as zero.

What is here are single instructions, as functions on memory whose meaning LLVM is told with each
kernel that calls them. They name their registers, and LLVM knows nothing of what these hold. As its
own intrinsics that name registers, it schedules them like others: for some processors it renames
the registers, to such as have another shape, or hold sums.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from tvm import tirx

from ...ir.kernel_structure import buffer_of
from ...ir.loops import Statement, sequence
from .pair_products import with_definitions

ROWS = 16
"""Rows of a tile register at most, and numbers of 32 bits in each of them."""

_NAME = "graphgrad_tile"

_ACROSS = 2
"""Tiles of sums on each side of a block of them."""

_FIRST, _SECOND = 4, 6
"""Registers from which on there are tiles of the first and of the second factors; sums come before
them: eight in all."""

_CONFIGURE = """
@{name}_shapes{suffix} = linkonce_odr constant [64 x i8] [{numbers}]
define linkonce_odr i32 @{name}_configure{suffix}() alwaysinline nounwind {{
  call i32 @{name}_load_shapes(ptr @{name}_shapes{suffix})
  ret i32 0
}}
"""

_INSTRUCTION = """
define linkonce_odr i32 @{name}_{function}({parameters}) alwaysinline nounwind {{
  call void asm sideeffect "{assembly}", "{constraints}"({arguments})
  ret i32 0
}}
"""


def _instruction(function: str, assembly: str, pointer: str = "", clobbered: str = "") -> str:
    """The function of one instruction, whose operand in memory is at a pointer, if it has one."""
    operands = ["ptr %at"] * (pointer != "") + ["i64 %stride"] * (pointer == "rows")
    unused = ["ptr %buffer"] * (pointer == "rows")
    constraints = ["r"] * len(operands)
    constraints += [f"~{{{name}}}" for name in (clobbered, "memory") if name]
    return _INSTRUCTION.format(
        name=_NAME,
        function=function,
        parameters=", ".join(operands + unused),
        assembly=assembly,
        constraints=",".join(constraints),
        arguments=", ".join(operands),
    )


def _sums(row: int, column: int) -> int:
    return _ACROSS * row + column


_INSTRUCTIONS = "".join(
    [
        _instruction("load_shapes", "ldtilecfg ($0)", "shapes"),
        _instruction("release", "tilerelease"),
        *(_instruction(f"zero_{t}", f"tilezero %tmm{t}", "", f"tmm{t}") for t in range(_FIRST)),
        *(
            _instruction(f"store_{t}", f"tilestored %tmm{t}, ($0,$1)", "rows")
            for t in range(_FIRST)
        ),
        *(
            _instruction(f"load_{t}", f"tileloadd ($0,$1), %tmm{t}", "rows", f"tmm{t}")
            for t in range(_FIRST, 8)
        ),
        *(
            _instruction(
                f"add_{_sums(row, column)}",
                f"tdpbf16ps %tmm{_SECOND + column}, %tmm{_FIRST + row}, %tmm{_sums(row, column)}",
                "",
                f"tmm{_sums(row, column)}",
            )
            for row in range(_ACROSS)
            for column in range(_ACROSS)
        ),
    ]
)
"""The instructions, as functions in LLVM's language."""


def configured(rows: int, columns: int, pairs: int, body: Statement) -> Statement:
    """A statement that uses tile registers, for tiles of the given shapes.

    Parameters
    ----------
    rows, columns : int
        Of a tile of sums.
    pairs : int
        The pairs that each of them is a sum of.
    body : Statement
    """
    suffix = f"_{rows}_{columns}_{pairs}"
    statement = sequence(_call(f"configure{suffix}"), body, _call("release"))
    numbers = ", ".join(f"i8 {number}" for number in _configuration(rows, columns, pairs))
    configure = _CONFIGURE.format(name=_NAME, suffix=suffix, numbers=numbers)
    return with_definitions(statement, _NAME, _INSTRUCTIONS + configure)


def _configuration(rows: int, columns: int, pairs: int) -> bytes:
    """What ``LDTILECFG`` reads: of each register the bytes of a row, and its rows."""
    shapes = [(rows, columns)] * _FIRST + [(rows, pairs)] * _ACROSS + [(pairs, columns)] * _ACROSS
    palette = 1
    row_bytes = [4 * width for _, width in shapes] + [0] * 8
    heights = [height for height, _ in shapes] + [0] * 8
    return struct.pack("<16B16H16B", palette, *[0] * 15, *row_bytes, *heights)


def zero(rows: int, columns: int) -> list[Statement]:
    """The statements that clear so many tiles of sums, down and across."""
    return [_call(f"zero_{_sums(r, c)}") for r in range(rows) for c in range(columns)]


def add_products(
    first: Sequence[Any], first_stride: Any, second: Sequence[Any], second_stride: Any
) -> list[Statement]:
    """The statements that add the products of tiles of both factors to tiles of sums.

    Parameters
    ----------
    first, second : sequence of TensorLoad
        The first element of each tile; the pairs of a row of the first are neighbors in memory, and
        those of a column of the second the strides apart.
    first_stride, second_stride : int
        The bytes from row to row.
    """
    return [
        *(_at_rows(f"load_{_SECOND + c}", load, second_stride) for c, load in enumerate(second)),
        *(_at_rows(f"load_{_FIRST + r}", load, first_stride) for r, load in enumerate(first)),
        *(_call(f"add_{_sums(r, c)}") for r in range(len(first)) for c in range(len(second))),
    ]


def store(sums: Sequence[Sequence[Any]], stride: int) -> list[Statement]:
    """The statements that store tiles of sums, from the first element of each on."""
    return [
        _at_rows(f"store_{_sums(r, c)}", load, stride)
        for r, row in enumerate(sums)
        for c, load in enumerate(row)
    ]


def _at_rows(function: str, load: Any, stride: int) -> Statement:
    """The statement that moves a register from or to memory, of which the first element is given.

    The last argument says that more of the buffer is used: TVM would shrink it to that element
    (`CompactBufferAllocation`).
    """
    address, whole = tirx.address_of(load), buffer_of(load).data
    return _call(function, address, tirx.const(stride, "int64"), whole)


def _call(function: str, *arguments: Any) -> Statement:
    return tirx.Evaluate(tirx.call_extern("int32", f"{_NAME}_{function}", *arguments))
