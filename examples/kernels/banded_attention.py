"""Banded attention: each position attends to its neighbors within a radius.

    python examples/kernels/banded_attention.py

The scores outside of the band are never computed, nor is anything of their gradient.
"""

from example import Arrays, Example
from tvm import te
from tvm.script import tirx as T


def inputs(random, heads, length, width, radius) -> Arrays:
    """Queries, keys and values."""
    del radius
    return {name: random.standard_normal((heads, length, width)) for name in "qkv"}


def banded_attention(q, k, v, radius):
    """The values of neighbors, mixed by a softmax over the band."""
    heads, length, width = q.shape
    band = (heads, length, 2 * radius + 1)
    c = te.reduce_axis((0, width), "c")
    w, u, z = (te.reduce_axis((0, 2 * radius + 1), name) for name in "wuz")

    def inside(position, value, otherwise):
        is_inside = te.all(position >= radius, position < length + radius)
        return te.if_then_else(is_inside, value, otherwise)

    def padded(x, name):
        """With a border of zeros, so that the sums below need no condition."""
        return te.compute(
            (heads, length + 2 * radius, width),
            lambda h, i, c: inside(i, x[h, i - radius, c], 0.0),
            name=name,
        )

    keys, values = padded(k, "keys"), padded(v, "values")
    products = te.compute(
        band, lambda h, i, w: te.sum(q[h, i, c] * keys[h, i + w, c], axis=c), name="products"
    )
    scale = float(int(width) ** -0.5)
    scores = te.compute(
        band,
        lambda h, i, w: inside(i + w, products[h, i, w] * scale, te.min_value("float32")),
        name="scores",
    )
    top = te.compute(band[:2], lambda h, i: te.max(scores[h, i, u], axis=u), name="top")
    e = te.compute(band, lambda h, i, w: te.exp(scores[h, i, w] - top[h, i]), name="e")
    total = te.compute(band[:2], lambda h, i: te.sum(e[h, i, z], axis=z), name="total")
    p = te.compute(band, lambda h, i, w: e[h, i, w] / total[h, i], name="p")
    return te.compute(
        q.shape, lambda h, i, c: te.sum(p[h, i, w] * values[h, i + w, c], axis=w), name="mixed"
    )


def script(heads, length, width, radius):
    """The same in TVMScript."""
    band, padded = 2 * radius + 1, length + 2 * radius
    scale = width**-0.5

    @T.prim_func(s_tir=True)
    def kernel(
        q: T.Buffer((heads, length, width), "float32"),
        k: T.Buffer((heads, length, width), "float32"),
        v: T.Buffer((heads, length, width), "float32"),
        out: T.Buffer((heads, length, width), "float32"),
    ):
        keys = T.sblock_alloc_buffer((heads, padded, width), "float32")
        values = T.sblock_alloc_buffer((heads, padded, width), "float32")
        products = T.sblock_alloc_buffer((heads, length, band), "float32")
        scores = T.sblock_alloc_buffer((heads, length, band), "float32")
        top = T.sblock_alloc_buffer((heads, length), "float32")
        total = T.sblock_alloc_buffer((heads, length), "float32")
        p = T.sblock_alloc_buffer((heads, length, band), "float32")
        for h, i, c in T.grid(heads, padded, width):
            with T.sblock("keys"):
                vh, vi, vc = T.axis.remap("SSS", [h, i, c])
                keys[vh, vi, vc] = T.if_then_else(
                    vi >= radius and vi < length + radius, k[vh, vi - radius, vc], T.float32(0)
                )
        for h, i, c in T.grid(heads, padded, width):
            with T.sblock("values"):
                vh, vi, vc = T.axis.remap("SSS", [h, i, c])
                values[vh, vi, vc] = T.if_then_else(
                    vi >= radius and vi < length + radius, v[vh, vi - radius, vc], T.float32(0)
                )
        for h, i, w, c in T.grid(heads, length, band, width):
            with T.sblock("products"):
                vh, vi, vw, vc = T.axis.remap("SSSR", [h, i, w, c])
                with T.init():
                    products[vh, vi, vw] = T.float32(0)
                products[vh, vi, vw] = products[vh, vi, vw] + q[vh, vi, vc] * keys[vh, vi + vw, vc]
        for h, i, w in T.grid(heads, length, band):
            with T.sblock("scores"):
                vh, vi, vw = T.axis.remap("SSS", [h, i, w])
                scores[vh, vi, vw] = T.if_then_else(
                    vi + vw >= radius and vi + vw < length + radius,
                    products[vh, vi, vw] * T.float32(scale),
                    T.min_value("float32"),
                )
        for h, i, w in T.grid(heads, length, band):
            with T.sblock("top"):
                vh, vi, vw = T.axis.remap("SSR", [h, i, w])
                with T.init():
                    top[vh, vi] = T.min_value("float32")
                top[vh, vi] = T.max(top[vh, vi], scores[vh, vi, vw])
        for h, i, w in T.grid(heads, length, band):
            with T.sblock("total"):
                vh, vi, vw = T.axis.remap("SSR", [h, i, w])
                with T.init():
                    total[vh, vi] = T.float32(0)
                total[vh, vi] = total[vh, vi] + T.exp(scores[vh, vi, vw] - top[vh, vi])
        for h, i, w in T.grid(heads, length, band):
            with T.sblock("p"):
                vh, vi, vw = T.axis.remap("SSS", [h, i, w])
                p[vh, vi, vw] = T.exp(scores[vh, vi, vw] - top[vh, vi]) / total[vh, vi]
        for h, i, c, w in T.grid(heads, length, width, band):
            with T.sblock("mixed"):
                vh, vi, vc, vw = T.axis.remap("SSSR", [h, i, c, w])
                with T.init():
                    out[vh, vi, vc] = T.float32(0)
                out[vh, vi, vc] = out[vh, vi, vc] + p[vh, vi, vw] * values[vh, vi + vw, vc]

    return kernel


EXAMPLE = Example(
    inputs,
    banded_attention,
    script,
    small={"heads": 2, "length": 6, "width": 4, "radius": 2},
    large={"heads": 8, "length": 2048, "width": 64, "radius": 32},
    settings=("radius",),
)

if __name__ == "__main__":
    EXAMPLE.show()
