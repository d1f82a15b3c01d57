"""Memory of the emulated device: its limit, its guards, and who may read it."""

import signal

import pytest

STORE_AT = 'extern "C" __global__ void f(float* x) {{ x[{index}] = 1.0f; }}'


@pytest.mark.parametrize("index", [10, -1])
def test_write_outside_an_allocation_names_the_kernel(emulated, index):
    source = STORE_AT.format(index=index)
    said = emulated(f"print(launch({source!r}, 1, 1, np.zeros(10, 'float32'))[0])")
    assert said.lines == ["CUDA_ERROR_ILLEGAL_ADDRESS"]
    assert "after f: memory written" in said.errors


def test_write_far_outside_is_an_error_of_the_launch(emulated):
    source = STORE_AT.format(index="1ll << 40")
    said = emulated(f"print(launch({source!r}, 1, 1, np.zeros(10, 'float32'))[0])")
    assert said.lines == ["CUDA_ERROR_ILLEGAL_ADDRESS"]
    assert "kernel f" in said.errors


@pytest.mark.parametrize("storage", ["", "__shared__ "], ids=["local", "shared"])
def test_index_outside_an_array_of_the_kernel_names_the_line(emulated, storage):
    source = f"""extern "C" __global__ void f(int* x) {{
  {storage}int kept[4];
  kept[x[0]] = 1;
  x[0] = kept[0];
}}"""
    said = emulated(f"print(launch({source!r}, 1, 1, np.array([4], 'int32'))[0])")
    assert said.lines == ["CUDA_ERROR_ILLEGAL_ADDRESS"]
    assert "line 3 of the source: index outside an array" in said.errors


def test_memory_never_written_is_nan(emulated):
    source = """
#include <cuda_fp16.h>
#include <cuda_bf16.h>
extern "C" __global__ void f(float* a, double* b, half* c, nv_bfloat16* d, float* y) {
  y[0] = a[3]; y[1] = (float)b[3]; y[2] = (float)c[3]; y[3] = (float)d[3];
}"""
    lines = (
        "fresh = [allocate(64)[1] for _ in range(4)]\n"
        f"print(*launch({source!r}, 1, 1, *fresh, np.zeros(4, 'float32'))[1][0])"
    )
    assert emulated(lines).lines == ["nan nan nan nan"]


def test_limit_of_the_memory(emulated):
    said = emulated(
        "print(available())\nfirst = allocate(600)\nprint(first[0], available())\n"
        "print(allocate(401))\nprint(free(first[1]), available(), allocate(1000)[0])",
        MEMORY="1000",
    )
    assert said.lines == [
        "1000",
        "cudaSuccess 400",
        "('cudaErrorMemoryAllocation', 0)",
        "cudaSuccess 1000 cudaSuccess",
    ]


def test_addresses_are_aligned_and_never_given_twice(emulated):
    said = emulated(
        "a = allocate(1)[1]; free(a); b = allocate(1)[1]\nprint(a % 256, b % 256, a == b)"
    )
    assert said.lines == ["0 0 False"]


def test_free_of_what_is_not_allocated(emulated):
    said = emulated("a = allocate(8)[1]; free(a); print(free(a), free(12345), free(0))")
    assert said.lines == ["cudaErrorInvalidValue cudaErrorInvalidValue cudaSuccess"]


def test_kernel_refuses_memory_of_the_host(emulated):
    said = emulated(
        f"x = np.zeros(10, 'float32')\n"
        f"print(launch({STORE_AT.format(index=0)!r}, 1, 1, x.ctypes.data)[0], x[0])"
    )
    assert said.lines == ["CUDA_ERROR_ILLEGAL_ADDRESS 0.0"]
    assert "no memory of the device" in said.errors


def test_kernel_refuses_memory_that_was_freed(emulated):
    said = emulated(
        f"a = allocate(64)[1]; free(a)\nprint(launch({STORE_AT.format(index=0)!r}, 1, 1, a)[0])"
    )
    assert said.lines == ["CUDA_ERROR_ILLEGAL_ADDRESS"]


def test_host_that_reads_memory_of_the_device_faults(emulated):
    said = emulated("ctypes.string_at(allocate(64)[1], 4)")
    assert said.status == -signal.SIGSEGV


def test_copies_know_the_side(emulated):
    said = emulated(
        "x = np.zeros(4, 'float32').ctypes.data; a = allocate(16)[1]\n"
        "for to, source in ((a, x), (x, a), (x, x), (a, a)):\n"
        "    print(*(copy(to, source, 16, kind) for kind in (TO_DEVICE, TO_HOST)))"
    )
    good, bad = "cudaSuccess", "cudaErrorInvalidValue"
    assert said.lines == [f"{good} {bad}", f"{bad} {good}", f"{bad} {bad}", f"{bad} {bad}"]


def test_copy_longer_than_the_allocation(emulated):
    said = emulated(
        "x = np.zeros(8, 'float32')\nprint(copy(allocate(16)[1], x.ctypes.data, 17, TO_DEVICE))"
    )
    assert said.lines == ["cudaErrorInvalidValue"]


def test_after_a_fault_every_call_fails(emulated):
    source = STORE_AT.format(index=10)
    said = emulated(
        f"a = allocate(8)[1]; launch({source!r}, 1, 1, np.zeros(10, 'float32'))\n"
        "print(allocate(8), free(a), error_name(runtime.cudaStreamSynchronize(None)))"
    )
    assert said.lines == [
        "('cudaErrorIllegalAddress', 0) cudaErrorIllegalAddress cudaErrorIllegalAddress"
    ]
