"""Names of values become identifiers of C++, and stay apart."""

import re

import pytest
import tvm
import tvm_ffi
from tvm import relax, te

import graphgrad as gg
from graphgrad.lower.cuda.compiler import executable_sources
from graphgrad.lower.cuda.lowering import PIPELINE
from graphgrad.lower.cuda.names import identifier, identifiers
from graphgrad.lower.cuda.schedule import schedule_threads
from graphgrad.lower.target import target

GPU = target({"kind": "cuda", "arch": "sm_90"})


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("conv1.weight", "conv1_weight"),
        ("/0/Conv_output_0", "_0_Conv_output_0"),
        ("0.weight", "_0_weight"),
        ("größe", "gr__e"),
        ("", "_"),
        ("x_1", "x_1"),
    ],
)
def test_identifier(name, expected):
    assert identifier(name) == expected


def test_a_value_keeps_one_name():
    x = te.placeholder((8,), name="/x")
    func = identifiers(te.create_prim_func([x, te.compute((8,), lambda i: x[i] + x[7 - i])]))
    names = []
    tvm_ffi.structural_walk(func, (tvm.ir.Var, lambda var: names.append(var.name)))
    assert "_x" in names
    assert "/x" not in names
    assert len([p for p in func.params if p.name == "_x"]) == 1


def test_names_that_become_the_same_stay_apart():
    x, y = te.placeholder((8,), name="a.b"), te.placeholder((8,), name="a_b")
    func = te.create_prim_func([x, y, te.compute((8,), lambda i: x[i] - y[i], name="0")])
    scheduled = schedule_threads(tvm.IRModule({"main": func}), GPU)
    executable = tvm.compile(scheduled, GPU, tir_pipeline=PIPELINE)
    (source,) = executable_sources(executable)
    (kernel,) = {line for line in source.splitlines() if "__global__" in line and "{" in line}
    parameters = re.findall(r"(\w+)[,)]", kernel[kernel.index("main_kernel") :])
    assert sorted(parameters) == ["_0_ptr", "a_b_ptr", "a_b_ptr_1"]


def test_kernels_that_are_lambdas_stay_apart():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((8,), "float32"))
    with builder.function("main", [x]):
        y = builder.emit(builder.call_te(lambda a: te.compute((8,), lambda i: a[7 - i] * a[i]), x))
        z = builder.emit(builder.call_te(lambda a: te.compute((8,), lambda i: a[i] / 3), y))
        builder.emit_func_output(z)
    (source,) = executable_sources(gg.compile(builder.get(), GPU))
    launched = re.findall(r"(\w+)\([^()]*\) \{", source)
    assert len(set(launched)) == len(launched) >= 1
    assert all("lambda" in name for name in launched)
