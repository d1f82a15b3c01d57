"""What the lowering of kernels does besides TVM's: host functions, symbolic temporaries, names."""

import pytest
import tvm
from tvm import te, tirx

from graphgrad.autodiff.vjp import vjp
from graphgrad.check import sample_module
from graphgrad.errors import LoweringError
from graphgrad.lower.cuda import lowering
from graphgrad.lower.cuda.compiler import executable_sources
from graphgrad.lower.cuda.schedule import schedule_threads
from graphgrad.lower.pipeline import generate, lower
from graphgrad.registry.sample import sample, tensor
from tests.lower.cuda.sources import TARGET, cuda_source


@pytest.mark.parametrize(
    ("op", "call"),
    [
        ("relax.add", sample(("n", 3), (3,))),
        ("relax.prod", sample(("n", 2), axis=[0])),
        ("relax.prod", sample((0, 3), axis=[0])),
        ("relax.cumsum", sample((0, 3), axis=0)),
        ("relax.median", sample(tensor((2, 3, 4), distinct=True), axis=[1])),
        # TVM took time that doubled with each step of the hash.
        ("graphgrad.dropout", sample((), tensor((), dtype="int64"), rate=0.5, stream=1)),
    ],
    ids=[
        "shapes are computed on the host",
        "temporaries of symbolic shape",
        "no elements, and temporaries",
        "no elements, by hand",
        "sorting without a function of the host",
        "a hash of a scalar",
    ],
)
def test_ops_that_stock_lowering_stops_at(op, call):
    mod = vjp(sample_module(op, call, "main"), "main")
    sources = executable_sources(generate(lower(mod, TARGET), TARGET))
    assert all("__global__" in source for source in sources)


def test_stock_lowering_sizes_symbolic_temporaries_by_threads(monkeypatch):
    """The pin of what `_lowered` avoids."""
    monkeypatch.setattr(lowering, "_holds_tiles", lambda func: True)
    mod = vjp(sample_module("relax.prod", sample(("n", 2), axis=[0]), "main"), "main")
    with pytest.raises(LoweringError, match="are used, but are not passed"):
        cuda_source(mod)


def test_kernels_of_one_name_are_refused(monkeypatch):
    def part(names):
        return tvm.IRModule({name: tirx.PrimFunc([], tirx.Evaluate(0)) for name in names})

    parts = iter([part(["f", "f_kernel"]), part(["f_kernel"])])
    with pytest.raises(LoweringError, match="two kernels have the name f_kernel"):
        lowering._lowered(tvm.IRModule({}), lambda _: next(parts))


def test_host_work_is_refused_by_name():
    @tvm.script.tirx.prim_func(private=True)
    def on_host(a: tvm.script.tirx.Buffer((4,), "float32")):
        a[0] = tvm.script.tirx.float32(1)

    with pytest.raises(LoweringError, match="main"):
        lowering.check(on_host, TARGET)


def test_calls_of_the_host_are_refused_by_name():
    """On one thread of the GPU, TVM would let the kernel through, and fail at the source."""
    x = te.placeholder((6, 5), "float32", "x")

    def called(ins, outs):
        return tirx.call_packed("my.library.of.the.host", ins[0], outs[0])

    y = te.extern(x.shape, [x], called, dtype="float32")
    kernel = te.create_prim_func([x, y]).with_attr("global_symbol", "sorted_elsewhere")
    with pytest.raises(LoweringError, match=r"sorted_elsewhere.* calls my\.library") as caught:
        schedule_threads(tvm.IRModule({"sorted_elsewhere": kernel}), TARGET)
    assert "llvm" in str(caught.value)
