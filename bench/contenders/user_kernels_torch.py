"""The kernels of `examples/kernels` in vectorized PyTorch, eager or compiled."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch.nn import functional as F
from user_kernel import cotangent, example_of
from workload import Workload

INCLUDES = "a function of tensors, and torch.autograd.grad"

Tensor = torch.Tensor


def bilateral_slice(grid: Tensor, guide: Tensor, image: Tensor) -> Tensor:
    height, width = guide.shape
    y = (torch.arange(height, dtype=guide.dtype) + 0.5) * (2 / height) - 1
    x = (torch.arange(width, dtype=guide.dtype) + 0.5) * (2 / width) - 1
    columns, rows = x.expand(height, width), y[:, None].expand(height, width)
    places = torch.stack([columns, rows, 2 * guide - 1], -1)[None, None]
    sampled = F.grid_sample(grid[None], places, padding_mode="border", align_corners=False)
    transform = sampled.view(3, 4, height, width)
    return (transform[:, :3] * image).sum(1) + transform[:, 3]


def banded_attention(q: Tensor, k: Tensor, v: Tensor, radius: int) -> Tensor:
    """By blocks of queries, and three blocks of keys around each: faster than a mask over all."""
    heads, length, width = q.shape

    def around(x: Tensor) -> Tensor:
        x = F.pad(x, (0, 0, radius, radius)).view(heads, -1, radius, width)
        return torch.cat([x[:, :-2], x[:, 1:-1], x[:, 2:]], 2)

    blocks = torch.arange(length // radius)[:, None, None] * radius
    i, j = torch.arange(radius)[:, None], torch.arange(3 * radius)
    position = blocks + j
    near = (j >= i) & (j <= i + 2 * radius) & (position >= radius) & (position < length + radius)
    scores = (q.view(heads, -1, radius, width) @ around(k).transpose(-1, -2)) * width**-0.5
    p = scores.masked_fill(~near, float("-inf")).softmax(-1)
    return (p @ around(v)).view(heads, length, width)


def soft_argmin(left: Tensor, right: Tensor, disparities: int) -> Tensor:
    windows = right.unfold(2, disparities, 1).flip(-1)
    cost = (left.unsqueeze(-1) - windows).abs().sum(0)
    return (-cost).softmax(-1) @ torch.arange(disparities, dtype=left.dtype)


def sinkhorn(x: Tensor, y: Tensor, g: Tensor) -> Tensor:
    blur = 0.5
    cost = (x.unsqueeze(1) - y).square().sum(-1)
    f = -blur * ((g - cost) / blur).logsumexp(1)
    return -blur * ((f.unsqueeze(1) - cost) / blur).logsumexp(0)


def masked_distances(
    x: Tensor, y: Tensor, x_count: Tensor, y_count: Tensor, scale: Tensor
) -> Tensor:
    difference = (x.unsqueeze(2) - y.unsqueeze(1)) * scale
    distances = ((1 + difference.square()).sqrt() - 1).sum(-1)
    rows = torch.arange(x.shape[1]) < x_count[:, None]
    columns = torch.arange(y.shape[1]) < y_count[:, None]
    return distances.where(rows.unsqueeze(2) & columns.unsqueeze(1), 0)


def deformable_window(
    image: Tensor, down: Tensor, right: Tensor, weight: Tensor, window: int
) -> Tensor:
    channels, height, width = image.shape
    tap = torch.arange(window * window)[:, None, None]
    row = down + (torch.arange(height)[:, None] + tap // window - window // 2)
    column = right + (torch.arange(width) + tap % window - window // 2)
    places = torch.stack([(2 * column + 1) / width - 1, (2 * row + 1) / height - 1], -1)
    flat = places.view(1, window * window * height, width, 2)
    taps = F.grid_sample(image[None], flat, align_corners=False)
    taps = taps.view(channels, window * window, height, width)
    return torch.einsum("tc,ctij->cij", weight, taps)


def filter_bank(signal: Tensor, tap: Tensor) -> Tensor:
    filters = torch.cat([tap[:, 1:].flip(1), tap], 1)
    return F.conv1d(signal.unsqueeze(1), filters.unsqueeze(1))


def spline(x: Tensor, coefficient: Tensor) -> Tensor:
    knots = coefficient.shape[1] - 3
    position = x * knots
    cell = position.floor().long().clamp(0, knots - 1)
    u = position - cell
    v = 1 - u
    basis = (
        v**3,
        3 * u**3 - 6 * u**2 + 4,
        3 * v**3 - 6 * v**2 + 4,
        u**3,
    )
    return sum(b * coefficient.gather(1, cell + m) for m, b in enumerate(basis)) / 6


def segment_softmax(score: Tensor, segment: Tensor, start: Tensor, longest: int) -> Tensor:
    """The largest scores are constants: they cancel."""
    del longest
    segments, heads = start.shape[0] - 1, score.shape[1]
    segment = segment.long()
    index = segment[:, None].expand_as(score)
    with torch.no_grad():
        top = score.new_zeros(segments, heads)
        top = top.scatter_reduce(0, index, score, "amax", include_self=False)
    e = (score - top[segment]).exp()
    total = score.new_zeros(segments, heads).index_add(0, segment, e)
    return e / total[segment]


def lifting_wavelet(image: Tensor, factor: Tensor) -> Tensor:
    def lifted(x: Tensor, axis: int) -> tuple[Tensor, Tensor]:
        even, odd = x.unflatten(axis, (-1, 2)).unbind(axis + 1)
        last = even.shape[axis] - 1
        for k in (0, 2):
            after = torch.cat([even.narrow(axis, 1, last), even.narrow(axis, last, 1)], axis)
            odd = odd + factor[k] * (even + after)
            before = torch.cat([odd.narrow(axis, 0, 1), odd.narrow(axis, 0, last)], axis)
            even = even + factor[k + 1] * (odd + before)
        return even, odd

    return torch.stack([band for part in lifted(image, 2) for band in lifted(part, 1)])


def polynomial_basis(x: Tensor, coefficient: Tensor) -> Tensor:
    basis = [torch.ones_like(x), x]
    while len(basis) < len(coefficient):
        basis.append(2 * x * basis[-1] - basis[-2])
    return torch.cat(basis, 1) @ coefficient.flatten(0, 1)


def ray_marching(depth: Tensor, color: Tensor) -> Tensor:
    weight = (depth - depth.cumsum(0)).exp() * (1 - (-depth).exp())
    return (weight.unsqueeze(1) * color).sum(0)


FUNCTIONS = {
    function.__name__: function
    for function in (
        bilateral_slice,
        banded_attention,
        soft_argmin,
        sinkhorn,
        masked_distances,
        deformable_window,
        filter_bank,
        spline,
        segment_softmax,
        lifting_wavelet,
        polynomial_basis,
        ray_marching,
    )
}


def prepare(
    workload: Workload, threads: int, kernel: str, large: bool, compiled: bool = False
) -> Step:
    """Return the step, which knows what its last call gave."""
    del workload
    torch.set_num_threads(threads)
    return Step(kernel, large, compiled)


class Step:
    """A kernel's value and its gradients by all floats."""

    def __init__(
        self, kernel: str, large: bool, compiled: bool, dtype: torch.dtype = torch.float32
    ):
        example, sizes = example_of(kernel, large)
        settings = {name: sizes[name] for name in example.settings}
        function = partial(FUNCTIONS[kernel], **settings)
        self._function = torch.compile(function) if compiled else function
        tensors = {n: torch.from_numpy(a) for n, a in example.arrays(sizes).items()}
        self._tensors = {
            n: t.to(dtype).requires_grad_() if t.is_floating_point() else t
            for n, t in tensors.items()
        }
        self._floats = {n: t for n, t in self._tensors.items() if t.requires_grad}
        with torch.no_grad():
            shape = function(*self._tensors.values()).shape
        self._cotangent = torch.from_numpy(cotangent(shape)).to(dtype)

    def __call__(self) -> None:
        self._value = self._function(*self._tensors.values())
        self._gradients = torch.autograd.grad(
            self._value, list(self._floats.values()), self._cotangent
        )

    def gradients(self) -> dict[str, np.ndarray]:
        """Return the value and the gradients of the last call."""
        named = dict(zip(self._floats, self._gradients, strict=True))
        return {"value": self._value.detach().numpy(), **{n: g.numpy() for n, g in named.items()}}
