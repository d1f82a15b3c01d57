"""Which contractions are for tensor cores, and how their kernels are written."""

import re

import pytest
import tvm
from tvm import te, tirx, topi

from graphgrad.ir.kernel_structure import loop_nest, stages, statements_of, substitute_values
from graphgrad.lower.cuda.compiler import machine_code
from graphgrad.lower.cuda.contraction import used_buffers
from graphgrad.lower.cuda.lowering import check
from graphgrad.lower.cuda.stages import tile_contractions
from graphgrad.lower.cuda.tensor_cores.device import Layout
from graphgrad.lower.cuda.tensor_cores.kernel import product_of
from graphgrad.lower.target import target
from tests.labels import label
from tests.lower.cuda.sources import TARGET, needs_nvcc, program, whole_source
from tests.lower.kernel_programs import tensor

OLD = target({"kind": "cuda", "arch": "sm_75"})


def products(inputs, output, gpu=TARGET, tf32=False):
    """Return what tensor cores would compute of a tensor expression, for each of its stages."""
    func = te.create_prim_func([*inputs, output])
    nests = [loop_nest(nest) for nest in statements_of(func.body.block.body)]
    pairs = zip(stages(func), nests, strict=True)
    return [product_of(stage, nest[1], gpu, tf32) for stage, nest in pairs]


def product(a, b, dtype="float32", factor=None):
    """Return Σ a·b with sums in a dtype, as a map of the factors if one is given."""
    k = te.reduce_axis((0, a.shape[1]), "k")

    def term(i, j):
        x, y = a[i, k].astype(dtype), b[k, j].astype(dtype)
        return te.sum(x * y if factor is None else factor(x, y), axis=k)

    return te.compute((a.shape[0], b.shape[1]), term, name="product")


def extents(axes):
    return [axis.extent for axis in axes]


def pair(dtype, other=None, m=32, k=48, n=40):
    return tensor(m, k, dtype=dtype), tensor(k, n, dtype=other or dtype, name="b")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_products_of_halves_are_taken(dtype):
    a, b = pair(dtype)
    (found,) = products([a, b], product(a, b))
    assert found.number == dtype
    assert [extents(axes) for axes in (found.rows, found.columns, found.terms)] == [
        [32],
        [40],
        [48],
    ]
    (found,) = products([a, b], product(a, b, dtype))  # sums in halves
    assert found.number == dtype


def test_float32_is_taken_where_it_may_be_rounded():
    a, b = pair("float32")
    assert products([a, b], product(a, b)) == [None]
    (found,) = products([a, b], product(a, b), tf32=True)
    assert found.number == "tf32"


@pytest.mark.parametrize(
    ("inputs", "options"),
    [
        (pair("bfloat16", "float16"), {}),
        (pair("float64"), {"dtype": "float64"}),
        (pair("bfloat16"), {"dtype": "float64"}),
        (pair("bfloat16", m=4), {}),
        (pair("bfloat16", n=7), {}),
        (pair("bfloat16", k=5), {}),
        (pair("bfloat16"), {"factor": lambda x, y: x + y}),
        (pair("bfloat16"), {"factor": lambda x, y: te.exp(x * y)}),
        (pair("bfloat16"), {"factor": lambda x, y: x * te.exp(y)}),
    ],
    ids=["mixed", "double", "sums", "rows", "columns", "terms", "add", "exp", "factor"],
)
def test_other_sums_are_not_taken(inputs, options):
    assert products(inputs, product(*inputs, **options), tf32=True) == [None]


def test_gpus_before_the_instructions_are_not_given_them():
    a, b = pair("bfloat16")
    assert products([a, b], product(a, b), OLD) == [None]


def test_factors_that_share_no_terms_are_not_taken():
    """A term of the sum that one factor alone is read along, and a row of both."""
    a, b = tensor(32, 48, dtype="bfloat16"), tensor(40, dtype="bfloat16", name="b")
    k = te.reduce_axis((0, 48), "k")
    outer = te.compute(
        (32, 40),
        lambda i, j: te.sum(a[i, k].astype("float32") * b[j].astype("float32"), axis=k),
    )
    assert products([a, b], outer) == [None]
    b = tensor(32, 48, dtype="bfloat16", name="b")
    rows = te.compute(
        (32,), lambda i: te.sum(a[i, k].astype("float32") * b[i, k].astype("float32"), axis=k)
    )
    assert products([a, b], rows) == [None]


@pytest.mark.parametrize("columns", [30, 31, 12], ids=["whole", "a part of a group", "narrow"])
def test_groups_are_a_batch(columns):
    size = 4 if columns == 12 else 10
    a, b = tensor(32, 64, dtype="bfloat16"), tensor(columns, 16, dtype="bfloat16", name="b")
    k = te.reduce_axis((0, 16), "k")

    def grouped(i, j):
        return te.sum(
            a[i, j // size * 16 + k].astype("float32") * b[j, k].astype("float32"), axis=k
        )

    (found,) = products([a, b], te.compute((32, columns), grouped))
    if columns != 30:
        assert found is None
        return
    axes = (found.batch, found.rows, found.columns, found.terms)
    assert [extents(each) for each in axes] == [[3], [32], [10], [16]]
    (merged,) = found.merged.values()
    (group,), (place,) = found.batch, found.columns
    tvm.ir.assert_structural_equal(merged, group.var * 10 + place.var)


def test_the_columns_are_neighbors_in_the_result():
    a, b = pair("bfloat16")
    k = te.reduce_axis((0, 48), "k")
    turned = te.compute(
        (40, 32),
        lambda j, i: te.sum(a[i, k].astype("float32") * b[k, j].astype("float32"), axis=k),
    )
    (found,) = products([a, b], turned)
    assert extents(found.columns) == [32]


def test_a_product_of_maps_is_one_launch():
    """Of a border of zeros and a cast before it, and of a bias and a function after it."""
    x, w, bias = tensor(4, 6, 6, 16), tensor(24, 3, 3, 16, name="w"), tensor(24, name="bias")
    padded = topi.nn.pad(topi.cast(x, "bfloat16"), [0, 1, 1, 0], [0, 1, 1, 0])
    weights = topi.cast(w, "bfloat16")
    r, s, c = (te.reduce_axis((0, extent), "r") for extent in (3, 3, 16))
    conv = te.compute(
        (4, 6, 6, 24),
        lambda n, p, q, o: te.sum(
            padded[n, p + r, q + s, c].astype("float32") * weights[o, r, s, c].astype("float32"),
            axis=[r, s, c],
        ),
    )
    y = topi.tanh(topi.add(conv, bias))
    func = tile_contractions(te.create_prim_func([x, w, bias, y]), TARGET)
    check(func, TARGET)
    assert func.script().count('thread="blockIdx.x"') == 1
    used = [buffer for buffer in used_buffers([func.body])[0] if buffer.scope() == "global"]
    assert {buffer.name for buffer in used} == {"x", "w", "bias", y.op.name}


def source_of(dtypes, *shapes):
    def result(a, b):
        return topi.cast(product(a, b), str(a.dtype))

    return whole_source(program(result, shapes, dtypes))


def test_tiles_of_whole_words_are_copied_16_bytes_at_a_time():
    source = source_of(["bfloat16"] * 2, (64, 96), (96, 64)).split('extern "C"')[-1]
    moved = re.findall(r"\*\(uint4\*\)\((x\d)_ptr", source)
    assert set(moved) == {"x0", "x1"}
    assert not re.search(r"= x\d_ptr\[", source)


def test_what_is_outside_is_not_loaded():
    """Odd extents: each element has its own condition, and no thread reads past the tensors."""
    source = source_of(["bfloat16"] * 2, (37, 19), (19, 53)).split('extern "C"')[-1]
    loads = re.findall(r"= x\d_ptr\[", source)
    guards = re.findall(r"if \(.*< (?:37|19|53)\)", source)
    assert loads and len(guards) > len(loads)


@pytest.mark.parametrize("number", ["bfloat16", "tf32"])
@pytest.mark.parametrize("rows", [32, 64, 128])
@pytest.mark.parametrize("along_terms", [True, False], ids=["terms", "rows"])
def test_chunks_that_are_read_at_once_are_in_different_banks(number, rows, along_terms):
    """Memory has 32 banks of 4 bytes; `ldmatrix` reads 8 chunks of 16 bytes at once."""
    layout = Layout(number, rows, along_terms)
    line, chunk = tirx.Var("line", "int64"), tirx.Var("chunk", "int64")
    rotated = layout.rotated(line, chunk)

    def bank(at_line, at_chunk):
        values = {line: tirx.const(at_line, "int64"), chunk: tirx.const(at_chunk, "int64")}
        at = int(tvm.sym.Analyzer().simplify(substitute_values(rotated, values)))
        assert 0 <= at < layout.chunks
        return (at_line * layout.chunks + at) * 16 % 128 // 16

    if layout.reads_words:  # 4 lines, of each 8 neighboring numbers of 4 bytes
        read = [(at, first) for at in range(4) for first in (0, 1)]
    else:
        read = [(at, 0) for at in range(8)]
    assert len({bank(*at) for at in read}) == 8
    assert len({bank(1, at) for at in range(min(layout.chunks, 8))}) == min(layout.chunks, 8)


@needs_nvcc
@pytest.mark.parametrize("shapes", [((64, 96), (96, 64)), ((37, 19), (19, 53))], ids=label)
def test_nvcc_takes_the_kernels(shapes):
    assert machine_code(source_of(["float16"] * 2, *shapes), "sm_80")
