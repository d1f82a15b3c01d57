"""Disassembled kernels: what their text says, and what of it falls short."""

import disassembly
import pytest
from sass import CONTRACTION, HANDMADE, MAP, REDUCTION, Kernel, Moved, Step, shortfalls

SASS = """
		Function : first_kernel
        /*0000*/                   LDC R1, c[0x0][0x28] ;         /* 0x00000a00ff017b82 */
                                                                  /* 0x000fe20000000800 */
        /*0060*/               @P0 EXIT ;                         /* 0x000000000000094d */
        /*00a0*/                   LDG.E.128.CONSTANT R4, desc[UR4][R2.64] ;  /* 0x0 */
        /*00b0*/              @!P1 LDG.E.U8.CONSTANT R8, desc[UR4][R2.64] ;   /* 0x0 */
        /*00c0*/                   SHFL.BFLY PT, R5, R4, 0x10, 0x1f ;         /* 0x0 */
        /*00d0*/                   STG.E desc[UR4][R2.64], R4 ;   /* 0x0 */
		Function : second_kernel
        /*0000*/                   DADD R2, R2, R4 ;              /* 0x0 */
"""

PTX = """
.visible .entry first_kernel(
	.param .u64 .ptr .align 1 first_kernel_param_0,
	.param .u64 .ptr .align 1 first_kernel_param_1
)
.maxntid 256
{
	ld.param.u64 	%rd1, [first_kernel_param_0];
	ld.param.u64 	%rd2, [first_kernel_param_1];
	cvta.to.global.u64 	%rd3, %rd2;
	cvta.to.global.u64 	%rd4, %rd1;
	mul.wide.s32 	%rd5, %r1, 4;
	add.s64 	%rd6, %rd3, %rd5;
	add.s64 	%rd7, %rd4, %rd5;
	ld.global.nc.v4.f32 	{%f1, %f2, %f3, %f4}, [%rd6];
	ld.global.nc.f32 	%f5, [%rd6+16];
	st.global.v2.f32 	[%rd7], {%f1, %f2};
	ret;
}
"""


def test_instructions_are_counted_by_name_and_accesses_by_width():
    kernels = disassembly.parse_sass(SASS)
    assert set(kernels) == {"first_kernel", "second_kernel"}
    first = kernels["first_kernel"]
    assert (first["LDG"], first["LDG.128"], first["LDG.8"]) == (2, 1, 1)
    assert (first["STG.32"], first["SHFL"], first["EXIT"]) == (1, 1, 1)
    assert kernels["second_kernel"] == {"DADD": 1}


def test_accesses_belong_to_parameters():
    (widths,) = disassembly.parse_ptx(PTX).values()
    assert widths == {(1, "ld"): {16: 1, 4: 1}, (0, "st"): {8: 1}}


def kernel(kind=MAP, wide=1.0, threads=256, size=1000, **counts):
    moved = [Moved("x", size, "ld", wide)]
    return Kernel(f"f_{kind}_kernel", f"f_{kind}", kind, 1, moved, counts, 32, threads)


def step(*kernels, rows=()):
    return Step("net", "float32", "sm_90", list(kernels), set(rows))


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (step(kernel(wide=0.9)), "moves 0.0 MB in narrow"),
        (step(kernel(LDL=2)), "spills: 2 accesses"),
        (step(kernel(CONTRACTION, STL=1)), "spills"),
        (step(kernel(DADD=1)), "computes in float64: 1"),
        (step(kernel(REDUCTION), rows=["f_reduction"]), "without shuffles"),
    ],
    ids=["narrow", "spills", "contraction", "float64", "rows"],
)
def test_what_falls_short_is_named(found, words):
    (shortfall,) = shortfalls(found)
    assert words in shortfall
    assert found.kernels[0].function in shortfall


@pytest.mark.parametrize(
    "found",
    [
        step(kernel(wide=0.96)),
        step(kernel(CONTRACTION, wide=0.0)),
        step(kernel(HANDMADE, wide=0.0, STL=3)),
        step(kernel(DADD=1, threads=1)),
        step(kernel(REDUCTION, SHFL=5), rows=["f_reduction"]),
        step(kernel(REDUCTION), rows=["another"]),
    ],
    ids=["wide enough", "contraction", "handmade", "a number", "rows", "no row"],
)
def test_what_is_good_is_not_named(found):
    assert shortfalls(found) == []


def test_the_share_of_wide_bytes_is_that_of_maps_and_reductions():
    found = step(kernel(size=300), kernel(REDUCTION, wide=0.0, size=100), kernel(CONTRACTION, 0.0))
    assert found.wide_share == 0.75
