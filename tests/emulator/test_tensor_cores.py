"""Instructions of tensor cores, against the tables of fragments in the PTX ISA (section 9.7.14).

Element i of a lane's fragment is at a row and a column of its matrix; g is the lane's group, t its
place in it.
"""

import pytest

MMA = """
extern "C" __global__ void f(const unsigned* a, const unsigned* b, float* c) {{
  const int lane = threadIdx.x;
  asm("mma.sync.aligned.{shape}.row.col.f32.{kind}.{kind}.f32 "
      "{{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}};"
      : "+f"(c[lane * 4]), "+f"(c[lane * 4 + 1]), "+f"(c[lane * 4 + 2]), "+f"(c[lane * 4 + 3])
      : "r"(a[lane * 4]), "r"(a[lane * 4 + 1]), "r"(a[lane * 4 + 2]), "r"(a[lane * 4 + 3]),
        "r"(b[lane * 2]), "r"(b[lane * 2 + 1]));
}}
"""

TABLES = {
    "m16n8k16": """
def a(g, t, i): return g + 8 * (i in (2, 3, 6, 7)), 2 * t + i % 2 + 8 * (i >= 4)
def b(g, t, i): return 2 * t + i % 2 + 8 * (i >= 2), g
""",
    "m16n8k8": """
def a(g, t, i): return g + 8 * (i in (1, 3)), t + 4 * (i >= 2)
def b(g, t, i): return t + 4 * (i == 1), g
""",
}

PRODUCT = """
import ml_dtypes
def c(g, t, i): return g + 8 * (i >= 2), 2 * t + i % 2
def places(table, count):
    return [table(lane // 4, lane % 4, i) for lane in range(32) for i in range(count)]
def fragments(matrix, table):
    return np.array([matrix[at] for at in places(table, matrix.size // 32)])
rng = np.random.default_rng(0)
left, right, before = (
    rng.integers(-8, 9, shape).astype("float32") for shape in ((16, {terms}), ({terms}, 8), (16, 8))
)
words = [fragments(m.astype({dtype}), f).view("uint32") for m, f in ((left, a), (right, b))]
error, (_, _, after) = launch({source!r}, 1, 32, *words, fragments(before, c))
result = np.empty((16, 8), "float32")
for at, value in zip(places(c, 4), after): result[at] = value
print(error, np.array_equal(result, before + left @ right))
"""


@pytest.mark.parametrize(
    ("kind", "shape", "dtype"),
    [
        ("bf16", "m16n8k16", "ml_dtypes.bfloat16"),
        ("f16", "m16n8k16", "'float16'"),
        ("tf32", "m16n8k8", "'float32'"),
    ],
)
def test_products_of_fragments_as_the_tables_place_them(emulated, kind, shape, dtype):
    source = MMA.format(shape=shape, kind=kind)
    lines = PRODUCT.format(source=source, terms=int(shape.split("k")[1]), dtype=dtype)
    assert emulated(TABLES[shape] + lines).lines == ["CUDA_SUCCESS True"]


LOAD = """
extern "C" __global__ void f(const unsigned short* x, unsigned* y) {{
  __shared__ alignas(16) unsigned short tile[256];
  for (int i = 0; i < 8; ++i) tile[threadIdx.x * 8 + i] = x[threadIdx.x * 8 + i];
  __syncthreads();
  const unsigned short* row = tile + (31 - threadIdx.x) * 8;
  unsigned* r = y + threadIdx.x * 4;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4{transposed}.shared.b16 {{%0, %1, %2, %3}}, [%4];"
      : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
      : "l"(__cvta_generic_to_shared(row)) : "memory");
}}
"""
"""Lane l has the address of row 31 - l of four matrices."""


@pytest.mark.parametrize("transposed", ["", ".trans"])
def test_matrices_are_loaded_as_the_table_places_them(emulated, transposed):
    lines = f"""
x = np.arange(256, dtype="uint16")
error, (_, y) = launch({LOAD.format(transposed=transposed)!r}, 1, 32, x, np.zeros(128, "uint32"))
matrices = x.reshape(32, 8)[::-1].reshape(4, 8, 8)
if {bool(transposed)}: matrices = matrices.transpose(0, 2, 1)
# Row lane / 4, columns 2 (lane % 4) and one more, are the two halves of a register.
expected = matrices.reshape(4, 8, 4, 2).transpose(1, 2, 0, 3).ravel()
print(error, np.array_equal(y.view("uint16"), expected))
"""
    assert emulated(lines).lines == ["CUDA_SUCCESS True"]


def test_rounding_to_tf32(emulated):
    """To nearest, ties away from zero; what is no number stays none."""
    source = """
extern "C" __global__ void f(const float* x, unsigned* y) {
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y[threadIdx.x]) : "f"(x[threadIdx.x]));
}"""
    lines = f"""
unit = 2.0**-10
numbers = [1 + unit / 2, 1 + 0.49 * unit, -1 - 1.5 * unit, 3.0e38, np.inf, -np.inf, np.nan]
x = np.array(numbers, "float32")
y = launch({source!r}, 1, len(x), x, np.zeros(len(x), "uint32"))[1][1].view("float32")
print(*((y[:3] + [-1, -1, 1]) / unit), abs(y[3] / 3e38 - 1) < unit, *y[4:])
"""
    assert emulated(lines).lines == ["1.0 0.0 -2.0 True inf -inf nan"]


def test_a_warp_that_is_not_whole_is_an_error(emulated):
    source = MMA.format(shape="m16n8k16", kind="bf16").replace("asm(", "if (lane < 16) asm(")
    lines = f"""
words = [np.zeros(n, "uint32") for n in (128, 64)]
print(launch({source!r}, 1, 32, *words, np.zeros(128, "float32"))[0])
"""
    said = emulated(lines)
    assert said.lines == ["CUDA_ERROR_ILLEGAL_ADDRESS"]
    assert "some lanes of the warp are not here" in said.errors


def test_an_instruction_that_is_not_known_is_named(emulated):
    source = 'extern "C" __global__ void f(int* x) { asm("popc.b32 %0, %0;" : "+r"(x[0])); }'
    said = emulated(f"print(launch({source!r}, 1, 1, np.zeros(1, 'int32'))[0])")
    assert "popc_b32" in said.errors
