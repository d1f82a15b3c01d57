"""Launches that the driver refuses, code for another architecture, and machines without a GPU."""

import pytest

KERNEL = 'extern "C" __global__ void {bounds} f(float* x) {{ x[0] = 1.0f; }}'

LAUNCHES = {
    "(1, 1024)": "CUDA_SUCCESS",
    "(1, (33, 32))": "CUDA_ERROR_INVALID_VALUE",
    "(1, (1, 1, 65))": "CUDA_ERROR_INVALID_VALUE",
    "(1, 0)": "CUDA_ERROR_INVALID_VALUE",
    "(0, 1)": "CUDA_ERROR_INVALID_VALUE",
    "((1, 65536), 1)": "CUDA_ERROR_INVALID_VALUE",
    "((1, 65535), 1)": "CUDA_SUCCESS",
}
"""Grids and blocks, and what the driver says."""


def test_limits_of_a_launch(emulated):
    source = KERNEL.format(bounds="")
    lines = f"""
for grid, block in ({", ".join(LAUNCHES)}):
    print(launch({source!r}, grid, block, np.zeros(1, "float32"))[0])
"""
    assert dict(zip(LAUNCHES, emulated(lines).lines, strict=True)) == LAUNCHES


def test_launch_bounds_are_kept(emulated):
    source = KERNEL.format(bounds="__launch_bounds__(64)")
    lines = f"""
for threads in (64, 65):
    print(launch({source!r}, 1, threads, np.zeros(1, "float32"))[0])
"""
    assert emulated(lines).lines == ["CUDA_SUCCESS", "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"]


def test_dynamic_shared_memory_has_a_limit(emulated):
    source = KERNEL.format(bounds="")
    lines = f"""
for size in (49152, 49153):
    print(launch({source!r}, 1, 1, np.zeros(1, "float32"), shared=size)[0])
"""
    assert emulated(lines).lines == ["CUDA_SUCCESS", "CUDA_ERROR_INVALID_VALUE"]


@pytest.mark.parametrize("extent", [12288, 12289])
def test_static_shared_memory_is_limited_by_the_compiler(emulated, extent):
    source = (
        f'extern "C" __global__ void f(float* x) {{ __shared__ alignas(64) float kept[{extent}];'
        " kept[threadIdx.x] = 1; x[0] = kept[0]; }"
    )
    said = emulated(f"print(launch({source!r}, 1, 1, np.zeros(1, 'float32'))[1][0])")
    if extent > 12288:
        assert "'f' uses too much shared data" in said.errors
    else:
        assert said.lines == ["[1.]"]


ARCHITECTURES = {
    ("sm_90", "9.0"): "CUDA_SUCCESS",
    ("sm_90", "8.0"): "CUDA_ERROR_NO_BINARY_FOR_GPU",
    ("sm_80", "8.6"): "CUDA_SUCCESS",
    ("sm_80", "9.0"): "CUDA_SUCCESS",  # from the virtual architecture beside it
    ("sm_90a", "9.0"): "CUDA_SUCCESS",
    ("sm_90a", "10.0"): "CUDA_ERROR_NO_BINARY_FOR_GPU",
}
"""Of the code and of the device, and what the driver says."""


def test_code_runs_on_the_architectures_that_it_is_for(emulated):
    lines = f"""
for arch, capability in {list(ARCHITECTURES)}:
    os.environ["GRAPHGRAD_EMULATOR_CAPABILITY"] = capability
    print(load(compiled({KERNEL.format(bounds="")!r}, arch))[0])
"""
    assert dict(zip(ARCHITECTURES, emulated(lines).lines, strict=True)) == ARCHITECTURES


def test_code_of_the_real_compiler_is_refused(emulated):
    said = emulated(r"print(load(b'\x50\xed\x55\xba not emulated')[0])")
    assert said.lines == ["CUDA_ERROR_INVALID_IMAGE"]


def test_source_that_does_not_compile_says_where(emulated):
    said = emulated("compiled('extern \"C\" __global__ void f(float* x) {\\n  y = 1;\\n}')")
    assert said.status == 1
    assert "kernels.cu:2:3: error" in said.errors


def test_large_sources_are_compiled_in_parts(emulated):
    kernel = 'extern "C" __global__ void {name}(float* x) {{ x[0] = twice(x[0]); /*{padding}*/ }}\n'
    lines = f"""
source = "__device__ float twice(float x) {{ return 2 * x; }}\\n"
for name in "fgh":
    source += {kernel!r}.format(name=name, padding=" " * 70000)
print(launch(source, 1, 1, np.ones(1, "float32"))[1][0])
"""
    assert emulated(lines).lines == ["[2.]"]


def test_tvm_sees_the_device(emulated):
    lines = """
import tvm
print(tvm.cuda().exist, tvm.cuda().compute_version, tvm.cuda().available_global_memory)
os.environ["GRAPHGRAD_EMULATOR_DEVICES"] = "0"
print(tvm.cuda().exist)
"""
    said = emulated(lines, CAPABILITY="8.0", MEMORY="12345")
    assert said.lines == ["True 8.0 12345", "False"]
