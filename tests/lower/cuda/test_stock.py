"""What stock TVM does with a CUDA target: why the lowering here goes its own way."""

import os

import pytest
import tvm
import tvm_ffi
from tvm import relax, te, tirx
from tvm.s_tir import dlight
from tvm.support.nvcc import compile_cuda

from graphgrad.errors import LoweringError
from graphgrad.lower import pipeline
from graphgrad.lower.cuda.compiler import machine_code
from graphgrad.lower.target import target
from tests.lower.programs import module, tensor_type

op = relax.op

GPU = target({"kind": "cuda", "arch": "sm_90"})


def weight_gradient(builder, x, ct):
    """Return what the stock gradient of a convolution of stride 2 comes to."""
    layout = {"data_layout": "CNHW", "kernel_layout": "IOHW", "out_layout": "CNHW"}
    ct = builder.emit(op.nn.conv2d(x, ct, dilation=(2, 2), padding=(1, 1), **layout))
    return builder.emit(op.strided_slice(ct, [2, 3], [0, 0], [3, 3]))


def pool_gradient(builder, ct, x):
    pool = op.grad.max_pool2d_backward(ct, x, pool_size=(2, 2), strides=(2, 2))
    return builder.emit(pool)


PROGRAMS = {
    "cross entropy": (
        lambda b, x, y: b.emit(op.nn.cross_entropy_with_logits(x, y)),
        [(4, 10), (4, 10)],
    ),
    "mean": (lambda b, x: b.emit(op.mean(x)), [(4, 10)]),
    "weight gradient": (weight_gradient, [(4, 3, 10, 10), (4, 8, 5, 5)]),
    "pool gradient": (pool_gradient, [(4, 3, 5, 5), (4, 3, 10, 10)]),
}

FAILURES = {
    "cross entropy": (dlight.gpu.Reduction(), "block_realize == old_block_realize_"),
    "mean": (dlight.gpu.Reduction(), "block_realize == old_block_realize_"),
    "weight gradient": (dlight.gpu.Matmul(), "consumers of the cache-write stage"),
    "pool gradient": (dlight.gpu.GeneralReduction(), "No matched reducer"),
}


def program(name):
    body, shapes = PROGRAMS[name]
    return module(body, *[tensor_type(*shape) for shape in shapes])


def stock_kernel(name):
    passes = [
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
    ]
    mod = tvm.transform.Sequential(passes)(program(name))
    (kernel,) = [f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc)]
    return kernel


@pytest.mark.parametrize("name", PROGRAMS)
def test_stock_rules_fail(name):
    rule, message = FAILURES[name]
    kernel = stock_kernel(name)
    with pytest.raises(Exception, match=message):
        with GPU:
            schedule = rule.apply(kernel, GPU, False)
        scheduled = schedule.mod["main"].with_attr("global_symbol", "main")
        tvm.compile(scheduled.with_attr("tirx.is_scheduled", True), GPU)


@pytest.mark.parametrize("name", PROGRAMS)
def test_ours_lowers_them(name):
    executable = pipeline.generate(pipeline.lower(program(name), GPU), GPU)
    assert device_modules(executable)


def plus_one(name):
    x = te.placeholder((8,), name=name)
    return te.create_prim_func([x, te.compute((8,), lambda i: x[i] + 1.0, name="y")])


def stock_executable(name):
    with GPU:
        schedule = dlight.gpu.Fallback().apply(plus_one(name), GPU, False)
    return tvm.compile(schedule.mod["main"].with_attr("tirx.is_scheduled", True), GPU)


def device_modules(executable):
    """Return the CUDA modules of an executable."""
    found, waiting = [], [executable.mod]
    while waiting:
        current = waiting.pop()
        found += [current] if str(current.kind) == "cuda" else []
        waiting += list(current.imports)
    return found


def test_unscheduled_kernels_silently_become_host_code():
    assert not device_modules(tvm.compile(plus_one("x"), GPU))


def test_stock_source_names_values_as_they_are():
    """The names of ONNX values make it no CUDA."""
    (device,) = device_modules(stock_executable("/0/x"))
    assert "__restrict__ /0/x" in device.inspect_source("cuda")


@pytest.fixture
def options(tmp_path, monkeypatch):
    """Put an nvcc on the PATH that refuses everything; return what it was last called with."""
    written = tmp_path / "options"
    nvcc = tmp_path / "nvcc"
    nvcc.write_text(f'#!/bin/sh\necho "$@" > {written}\nexit 1\n')
    nvcc.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return written.read_text


def test_stock_compiler_uses_fast_mathematics(options):
    with GPU, pytest.raises(RuntimeError):
        compile_cuda("stock", target_format="fatbin", arch="sm_90", compiler="nvcc")
    assert "--use_fast_math" in options()


def test_our_compiler_does_not(options):
    with pytest.raises(LoweringError, match="refuses"):
        machine_code("ours", "sm_90")
    assert "fast" not in options()
    assert "--ftz=false" in options()


def test_stock_keeps_source_alone_without_a_driver():
    if tvm_ffi.get_global_func("device_api.cuda", allow_missing=True):
        pytest.skip("the CUDA runtime is loaded here: TVM compiles at once")
    (device,) = device_modules(stock_executable("x"))
    assert "__global__" in device.inspect_source("cuda")
    assert not device.inspect_source("fatbin")
