"""The sum of a ray marching through a cloud: each sample hides those behind it.

    python examples/kernels/ray_marching.py

Mildenhall et al., *NeRF*, ECCV 2020: the color of a ray, from densities and colors along it.
"""

from example import Arrays, Example
from tvm import te
from tvm.script import tirx as T


def inputs(random, rays, samples) -> Arrays:
    """The optical depth of each sample, and its color."""
    return {
        "depth": random.uniform(0, 0.2, (samples, rays)),
        "color": random.uniform(0, 1, (samples, 3, rays)),
    }


def ray_marching(depth, color):
    """What light comes of each ray."""
    samples, rays = depth.shape
    s = te.reduce_axis((0, samples), "s")
    state = te.placeholder((samples, rays), depth.dtype, name="state")
    first = te.compute((1, rays), lambda _, r: 0.0, name="first")
    following = te.compute(
        state.shape, lambda s, r: state[s - 1, r] + depth[s - 1, r], name="following"
    )
    before = te.scan(first, following, state, inputs=[depth])
    weight = te.compute(
        depth.shape,
        lambda s, r: te.exp(-before[s, r]) * (1.0 - te.exp(-depth[s, r])),
        name="weight",
    )
    return te.compute(
        (3, rays), lambda c, r: te.sum(weight[s, r] * color[s, c, r], axis=s), name="light"
    )


def script(rays, samples):
    """The same in TVMScript: a ray carries what is left of its light."""

    @T.prim_func(s_tir=True)
    def kernel(
        depth: T.Buffer((samples, rays), "float32"),
        color: T.Buffer((samples, 3, rays), "float32"),
        out: T.Buffer((3, rays), "float32"),
    ):
        left = T.sblock_alloc_buffer((rays,), "float32")
        with T.sblock("march"):
            for r in range(rays):
                left[r] = T.float32(1)
                for c in range(3):
                    out[c, r] = T.float32(0)
            for s in range(samples):
                for r in range(rays):
                    through: T.let = T.exp(-depth[s, r])
                    for c in range(3):
                        out[c, r] = out[c, r] + left[r] * (1.0 - through) * color[s, c, r]
                    left[r] = left[r] * through

    return kernel


EXAMPLE = Example(
    inputs,
    ray_marching,
    script,
    small={"rays": 3, "samples": 5},
    large={"rays": 4096, "samples": 128},
)

if __name__ == "__main__":
    EXAMPLE.show()
