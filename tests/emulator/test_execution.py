"""Threads of the emulated device: what they exchange, and the mistakes that are found."""

import pytest

REVERSED_IN_BLOCK = """
extern "C" __global__ void __launch_bounds__(64) f(float* __restrict__ x) {{
  __shared__ alignas(64) float kept[64];
  kept[threadIdx.x] = x[blockIdx.x * 64 + threadIdx.x];
  {barrier}
  x[blockIdx.x * 64 + threadIdx.x] = kept[63 - threadIdx.x];
}}
"""
"""Each thread reads what another one has written to shared memory."""


def in_block(barrier):
    return f"""
x = np.arange(128, dtype="float32")
error, (y,) = launch({REVERSED_IN_BLOCK.format(barrier=barrier)!r}, 2, 64, x)
print(error, np.array_equal(y, x.reshape(2, 64)[:, ::-1].ravel()), np.isnan(y).any())
"""


def test_barrier_orders_shared_memory(emulated):
    lines = in_block("__syncthreads();")
    assert emulated(lines).lines == emulated(lines, ORDER="reverse").lines
    assert emulated(lines).lines == ["CUDA_SUCCESS True False"]


def test_missing_barrier_reads_memory_never_written(emulated):
    assert emulated(in_block("")).lines == ["CUDA_SUCCESS False True"]


def test_race_in_global_memory_depends_on_the_order(emulated):
    source = 'extern "C" __global__ void f(int* x) { x[0] = threadIdx.x + 10 * blockIdx.x; }'
    lines = f"print(launch({source!r}, 3, 4, np.zeros(1, 'int32'))[1][0][0])"
    assert emulated(lines).lines == ["23"]
    assert emulated(lines, ORDER="reverse").lines == ["0"]


@pytest.mark.parametrize(
    "body",
    [
        "if (threadIdx.x < 40) __syncthreads();",
        "if (threadIdx.x >= 40) return; __syncthreads();",
        "if (threadIdx.x < 40)\n __syncthreads();\n else\n __syncthreads();",
    ],
    ids=["not-all", "returned", "two-places"],
)
def test_divergent_barrier_is_an_error_that_names_the_kernel(emulated, body):
    source = f'extern "C" __global__ void f(float* x) {{ {body} x[threadIdx.x] = 1; }}'
    said = emulated(f"print(launch({source!r}, 1, 64, np.zeros(64, 'float32'))[0])")
    assert said.lines == ["CUDA_ERROR_LAUNCH_FAILED"]
    assert "kernel f" in said.errors and "divergent barrier" in said.errors


SHUFFLES = {
    "__shfl_sync(0xffffffff, v, 5)": lambda lane: 5,
    "__shfl_sync(0xffffffff, v, 5, 8)": lambda lane: lane // 8 * 8 + 5,
    "__shfl_down_sync(0xffffffff, v, 3, 32)": lambda lane: lane + 3 if lane + 3 < 32 else lane,
    "__shfl_up_sync(0xffffffff, v, 3, 16)": lambda lane: lane - 3 if lane % 16 >= 3 else lane,
    "__shfl_xor_sync(0xffffffff, v, 9)": lambda lane: lane ^ 9,
}


@pytest.mark.parametrize(("kind", "dtype"), [("float", "float32"), ("double", "float64")])
def test_shuffles_read_the_lane_that_cuda_defines(emulated, kind, dtype):
    rows = "".join(f" y[{64 * row} + threadIdx.x] = {s};" for row, s in enumerate(SHUFFLES))
    source = f'extern "C" __global__ void f({kind}* y) {{ {kind} v = threadIdx.x; {rows} }}'
    lines = (
        f"y = launch({source!r}, 1, 64, np.zeros(({len(SHUFFLES)}, 64), {dtype!r}))[1][0]\n"
        "for row in y: print(*row.astype(int))"
    )
    read = dict(zip(SHUFFLES, emulated(lines).lines, strict=True))
    assert read == {
        shuffle: " ".join(str(32 * (t // 32) + lane(t % 32)) for t in range(64))
        for shuffle, lane in SHUFFLES.items()
    }


def test_shuffle_from_a_lane_that_is_not_there_is_poison(emulated):
    source = """
extern "C" __global__ void f(float* x) {
  x[threadIdx.x] = __shfl_down_sync(__activemask(), x[threadIdx.x], 2, 32);
}"""
    said = emulated(f"print(*launch({source!r}, 1, 4, np.arange(4, dtype='float32'))[1][0])")
    assert said.lines == ["2.0 3.0 nan nan"]


def test_active_mask_holds_the_lanes_of_one_branch(emulated):
    source = """
extern "C" __global__ void f(int* x) {
  if (threadIdx.x < 5) x[threadIdx.x] = __activemask();
  else if (threadIdx.x < 40) x[threadIdx.x] = __activemask();
}"""
    said = emulated(f"x = launch({source!r}, 1, 48, np.zeros(48, 'uint32'))[1][0]\nprint(*x)")
    expected = [0x1F] * 5 + [0xFFFFFFE0] * 27 + [0xFF] * 8 + [0] * 8
    assert said.lines == [" ".join(map(str, expected))]


def test_lanes_of_a_mask_that_never_come_are_an_error(emulated):
    source = (
        'extern "C" __global__ void f(float* x) '
        "{ if (threadIdx.x < 3) x[0] = __shfl_sync(0xffffffff, x[0], 0); else __syncthreads(); }"
    )
    said = emulated(f"print(launch({source!r}, 1, 8, np.zeros(1, 'float32'))[0])")
    assert said.lines == ["CUDA_ERROR_LAUNCH_FAILED"]
    assert "lanes of the mask" in said.errors


def test_atomic_functions_and_dynamic_shared_memory(emulated):
    source = """
extern "C" __global__ void f(float* x) {
  extern __shared__ uchar buffer[];
  float* sums = (float*)buffer;
  if (threadIdx.x == 0) sums[0] = 0.0f;
  __syncthreads();
  atomicAdd(sums, 1.0f);
  __syncthreads();
  if (threadIdx.x == 0) atomicMax(x, sums[0] + blockIdx.x);
}"""
    source = "typedef unsigned char uchar;\n" + source
    lines = f"print(*launch({source!r}, 3, 100, np.zeros(1, 'float32'), shared=4)[1][0])"
    assert emulated(lines).lines == ["102.0"]


def test_division_of_integers_by_zero_is_an_error(emulated):
    source = 'extern "C" __global__ void f(int* x) { x[0] = 7 / x[0]; }'
    said = emulated(f"print(launch({source!r}, 1, 1, np.zeros(1, 'int32'))[0])")
    assert said.lines == ["CUDA_ERROR_ILLEGAL_ADDRESS"] and "by zero" in said.errors
