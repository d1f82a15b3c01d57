"""The last resort: what has no independent points runs in one thread."""

from tvm import te

from graphgrad.lower.cuda.schedule import Kernel
from graphgrad.ops.cumulative import cumulative
from tests.lower.cuda.sources import cuda_source, program


def test_a_scan_of_one_line_runs_in_one_thread():
    kernels: list[Kernel] = []
    source = cuda_source(
        program(lambda x: cumulative(x, 0, "add", False), [(9,)], ["float32"]), kernels
    )
    (kernel,) = kernels
    assert kernel.rule == "serial"
    assert dict(kernel.refused)["parallel"] == "another structure"
    assert "blockIdx" not in source
    assert "threadIdx" not in source


def test_what_is_parallel_beside_it_keeps_its_threads():
    def expression(x):
        total = cumulative(x, 0, "add", False)
        return te.compute((60,), lambda i: total(i) * 2, name="doubled")

    kernels: list[Kernel] = []
    source = cuda_source(program(expression, [(60,)], ["float32"]), kernels)
    assert [kernel.rule for kernel in kernels] == ["serial"]
    assert "threadIdx.x" in source
