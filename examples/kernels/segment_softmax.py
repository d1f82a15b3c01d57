"""A softmax within each segment of rows, such as the edges that enter a node of a graph.

    python examples/kernels/segment_softmax.py

Where a segment begins is data: rows lie one behind the other, as in compressed sparse rows.
"""

import numpy as np
from example import Arrays, Example
from tvm import te
from tvm.script import tirx as T


def inputs(random, segments, rows, heads, longest) -> Arrays:
    """Scores, the segment of each row, and where segments begin."""
    even = np.arange(segments + 1) * rows // segments
    moved = random.integers(0, (longest - rows // segments) // 2, segments + 1)
    start = np.minimum(even + moved, rows)
    start[0], start[-1] = 0, rows
    return {
        "score": random.standard_normal((rows, heads)),
        "segment": np.repeat(np.arange(segments), np.diff(start)).astype("int32"),
        "start": start.astype("int32"),
    }


def segment_softmax(score, segment, start, longest):
    """Each score's share of its segment."""
    _, heads = score.shape
    segments = start.shape[0] - 1
    k, m = te.reduce_axis((0, longest), "k"), te.reduce_axis((0, longest), "m")

    def row(s, k, value, otherwise):
        return te.if_then_else(start[s] + k < start[s + 1], value(start[s] + k), otherwise)

    top = te.compute(
        (segments, heads),
        lambda s, h: te.max(row(s, k, lambda r: score[r, h], te.min_value("float32")), axis=k),
        name="top",
    )
    e = te.compute(score.shape, lambda r, h: te.exp(score[r, h] - top[segment[r], h]), name="e")
    total = te.compute(
        top.shape, lambda s, h: te.sum(row(s, m, lambda r: e[r, h], 0.0), axis=m), name="total"
    )
    return te.compute(score.shape, lambda r, h: e[r, h] / total[segment[r], h], name="share")


def script(segments, rows, heads, longest):
    """The same in TVMScript."""

    @T.prim_func(s_tir=True)
    def kernel(
        score: T.Buffer((rows, heads), "float32"),
        segment: T.Buffer((rows,), "int32"),
        start: T.Buffer((segments + 1,), "int32"),
        out: T.Buffer((rows, heads), "float32"),
    ):
        top = T.sblock_alloc_buffer((segments, heads), "float32")
        total = T.sblock_alloc_buffer((segments, heads), "float32")
        e = T.sblock_alloc_buffer((rows, heads), "float32")
        for s, h, k in T.grid(segments, heads, longest):
            with T.sblock("top"):
                vs, vh, vk = T.axis.remap("SSR", [s, h, k])
                with T.init():
                    top[vs, vh] = T.min_value("float32")
                if start[vs] + vk < start[vs + 1]:
                    top[vs, vh] = T.max(top[vs, vh], score[start[vs] + vk, vh])
        for r, h in T.grid(rows, heads):
            with T.sblock("e"):
                vr, vh = T.axis.remap("SS", [r, h])
                e[vr, vh] = T.exp(score[vr, vh] - top[segment[vr], vh])
        for s, h in T.grid(segments, heads):
            with T.sblock("zero"):
                vs, vh = T.axis.remap("SS", [s, h])
                total[vs, vh] = T.float32(0)
        for r, h in T.grid(rows, heads):
            with T.sblock("total"):
                vr, vh = T.axis.remap("RS", [r, h])
                total[segment[vr], vh] = total[segment[vr], vh] + e[vr, vh]
        for r, h in T.grid(rows, heads):
            with T.sblock("share"):
                vr, vh = T.axis.remap("SS", [r, h])
                out[vr, vh] = e[vr, vh] / total[segment[vr], vh]

    return kernel


EXAMPLE = Example(
    inputs,
    segment_softmax,
    script,
    small={"segments": 3, "rows": 7, "heads": 2, "longest": 6},
    large={"segments": 4096, "rows": 65536, "heads": 8, "longest": 32},
    settings=("longest",),
)

if __name__ == "__main__":
    EXAMPLE.show()
