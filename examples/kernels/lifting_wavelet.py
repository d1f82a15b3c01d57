"""One level of a wavelet by lifting, rows then columns, with learned steps.

    python examples/kernels/lifting_wavelet.py

Daubechies and Sweldens, *Factoring wavelet transforms into lifting steps*, 1998: by its steps the
9/7 wavelet of JPEG 2000. Borders are mirrored.
"""

from example import Arrays, Example
from tvm import te, tirx
from tvm.script import tirx as T


def inputs(random, images, height, width) -> Arrays:
    """Images, and the factors of four steps and of both halves."""
    return {
        "image": random.standard_normal((images, height, width)),
        "factor": random.uniform(-1, 1, 4),
    }


def lifting_wavelet(image, factor):
    """The four bands: low and high, by columns and by rows."""
    images, height, width = image.shape

    def halves(x, axis):
        """The even and the odd places along an axis, after four steps."""
        shape = [n // 2 if number == axis else n for number, n in enumerate(x.shape)]
        last = shape[axis] - 1

        def moved(at, position):
            return [*at[:axis], position, *at[axis + 1 :]]

        def taken(part):
            return te.compute(shape, lambda *at: x(*moved(at, 2 * at[axis] + part)), name="half")

        def step(k, target, source, by):
            def value(*at):
                neighbor = tirx.Max(tirx.Min(at[axis] + by, last), 0)
                return target(*at) + factor[k] * (source(*at) + source(*moved(at, neighbor)))

            return te.compute(shape, value, name=f"step{k}")

        even, odd = taken(0), taken(1)
        for k in (0, 2):
            odd = step(k, odd, even, 1)
            even = step(k + 1, even, odd, -1)
        return even, odd

    bands = [band for part in halves(image, 2) for band in halves(part, 1)]

    def band(b, *at):
        low, high = (tirx.Select(b % 2 == 0, bands[k](*at), bands[k + 1](*at)) for k in (0, 2))
        return tirx.Select(b < 2, low, high)

    return te.compute((4, images, height // 2, width // 2), band, name="bands")


def script(images, height, width):
    """The same in TVMScript, in place, as lifting is done where memory is short."""

    @T.prim_func(s_tir=True)
    def kernel(
        image: T.Buffer((images, height, width), "float32"),
        factor: T.Buffer((4,), "float32"),
        out: T.Buffer((4, images, height // 2, width // 2), "float32"),
    ):
        work = T.sblock_alloc_buffer((images, height, width), "float32")
        with T.sblock("lifting"):
            for n, i, j in T.grid(images, height, width):
                work[n, i, j] = image[n, i, j]
            for k in T.unroll(2):
                for n, i, j in T.grid(images, height, width // 2):
                    work[n, i, 2 * j + 1] = work[n, i, 2 * j + 1] + factor[2 * k] * (
                        work[n, i, 2 * j] + work[n, i, T.min(2 * j + 2, width - 2)]
                    )
                for n, i, j in T.grid(images, height, width // 2):
                    work[n, i, 2 * j] = work[n, i, 2 * j] + factor[2 * k + 1] * (
                        work[n, i, 2 * j + 1] + work[n, i, T.max(2 * j - 1, 1)]
                    )
            for k in T.unroll(2):
                for n, i, j in T.grid(images, height // 2, width):
                    work[n, 2 * i + 1, j] = work[n, 2 * i + 1, j] + factor[2 * k] * (
                        work[n, 2 * i, j] + work[n, T.min(2 * i + 2, height - 2), j]
                    )
                for n, i, j in T.grid(images, height // 2, width):
                    work[n, 2 * i, j] = work[n, 2 * i, j] + factor[2 * k + 1] * (
                        work[n, 2 * i + 1, j] + work[n, T.max(2 * i - 1, 1), j]
                    )
            for b, n, i, j in T.grid(4, images, height // 2, width // 2):
                out[b, n, i, j] = work[n, 2 * i + b % 2, 2 * j + b // 2]

    return kernel


EXAMPLE = Example(
    inputs,
    lifting_wavelet,
    script,
    small={"images": 2, "height": 4, "width": 6},
    large={"images": 16, "height": 256, "width": 256},
)

if __name__ == "__main__":
    EXAMPLE.show()
