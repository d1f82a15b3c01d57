"""Calls that together hold every operator of PyTorch with a converter, by family.

A case maps a dict of inputs to a tensor, or to several.
"""

from tests.peers import peer

torch = peer("torch")
F = torch.nn.functional


def inputs():
    """Return the inputs by name: floats away from 0, of which `p` is above 1; `i` has integers."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        values = torch.rand(*shape, dtype=torch.float64, generator=generator)
        sign = torch.where(torch.rand(*shape, generator=generator) < 0.5, -1.0, 1.0)
        return (0.2 + 0.7 * values) * sign

    return {
        "x": draw(3, 4),
        "y": draw(3, 4),
        "p": draw(3, 4).abs() + 1.0,
        "i": torch.randint(0, 3, (3, 4), generator=generator),
        "image": draw(2, 4, 6, 5),
        "line": draw(2, 4, 9),
        "grid": draw(2, 3, 3, 2),
        "volume": draw(1, 2, 4, 4, 3),
        "points": draw(1, 2, 2, 2, 3),
    }


ELEMENTWISE = {
    "unary": lambda d: [
        getattr(torch, name)(d["x"])
        for name in (
            *("abs", "acos", "asin", "asinh", "atan", "atanh", "cos", "cosh", "erf", "exp"),
            *("neg", "relu", "sigmoid", "sin", "sinh", "tan", "tanh", "exp2", "expm1"),
        )
    ],
    "positive": lambda d: [
        getattr(torch, name)(d["p"])
        for name in ("acosh", "log", "log10", "log1p", "log2", "reciprocal", "rsqrt", "sqrt")
    ],
    "steps": lambda d: [
        getattr(torch, name)(3 * d["x"]) for name in ("ceil", "floor", "round", "sign", "trunc")
    ],
    "near zero": lambda d: (torch.expm1(1e-9 * d["x"]), torch.log1p(1e-9 * d["x"])),
    "far from zero": lambda d: (torch.expm1(9 * d["p"]), F.softplus(90 * d["x"])),
    "integers in floats": lambda d: (torch.exp(d["i"]), torch.sqrt(d["i"] + 1), 1 / (d["i"] + 1)),
    "tests": lambda d: (
        torch.isinf(1.0 / (0.0 * d["x"])),
        torch.isnan(d["x"] * float("nan")),
        torch.logical_not(d["i"]),
        torch.logical_not(d["x"] > 0),
        ~(d["x"] > 0),
        ~d["i"],
    ),
    "comparisons": lambda d: [
        getattr(torch, name)(d["i"], other)
        for name in ("eq", "ge", "gt", "le", "lt", "ne")
        for other in (1, 0.5, d["x"], d["i"].flip(0))
    ],
    "bits": lambda d: [
        *(
            getattr(torch, f"bitwise_{name}")(d["i"], other)
            for name in NAMES
            for other in (5, d["i"])
        ),
        *(getattr(torch, f"logical_{name}")(d["x"] > 0, d["i"]) for name in NAMES),
    ],
    "sums": lambda d: (
        torch.add(d["x"], d["y"], alpha=2.5),
        torch.sub(d["x"], d["y"], alpha=-3),
        torch.rsub(d["x"], d["y"], alpha=2),
        3.0 - d["x"],
        d["x"] + 1,
        d["i"] + 0.5,
        d["i"] + d["x"],
        d["i"] - 2,
        (d["x"] > 0) + (d["y"] > 0),
    ),
    "products": lambda d: (
        d["x"] * d["y"],
        d["i"] * 0.5,
        d["i"] * d["x"],
        d["x"] / d["p"],
        d["i"] / 2,
        d["x"].detach() / 0,
        torch.div(d["x"].detach(), -0.0, rounding_mode="floor"),
        (d["x"] > 0) * (d["y"] > 0),
        torch.div(7 * d["x"], d["p"], rounding_mode="floor"),
        torch.div(7 * d["x"], d["p"], rounding_mode="trunc"),
        torch.div(d["i"] - 2, 2, rounding_mode="floor"),
        torch.remainder(7 * d["x"], d["p"]),
        torch.remainder(d["x"], 0.15),
        torch.fmod(7 * d["x"], d["p"]),
    ),
    "powers": lambda d: (d["x"] ** 3, d["p"] ** 0.5, d["p"] ** d["y"], 2.0 ** d["x"], d["i"] ** 2),
    "pairs": lambda d: (
        torch.atan2(d["x"], d["y"]),
        torch.maximum(d["x"], d["y"]),
        torch.minimum(d["x"], d["y"]),
        torch.maximum(d["i"], d["x"]),
        torch.where(d["i"] > 0, d["x"], d["y"]),
        torch.where(d["i"] > 0, d["x"], 2.0),
    ),
    "bounds": lambda d: (
        torch.clamp(d["x"], -0.5, 0.5),
        torch.clamp(d["x"], min=-0.5),
        torch.clamp(d["x"], max=0.5),
        torch.clamp(d["i"], 1, 1),
        torch.clamp(d["x"], d["y"] - 0.15, d["y"] + 0.15),
        F.hardtanh(d["x"], -0.4, 0.6),
        F.relu6(7 * d["x"]),
    ),
    "activations": lambda d: (
        F.gelu(d["x"]),
        F.gelu(d["x"], approximate="tanh"),
        F.leaky_relu(d["x"], 0.1),
        F.elu(d["x"], 1.5),
        F.selu(d["x"]),
        F.celu(d["x"], 0.7),
        F.silu(d["x"]),
        F.mish(d["x"]),
        F.softplus(d["x"], 2.0, 1.0),
        F.softsign(d["x"]),
        F.logsigmoid(d["x"]),
        F.hardswish(4 * d["x"]),
        F.hardsigmoid(4 * d["x"]),
        F.tanhshrink(d["x"]),
        F.prelu(d["x"], d["p"][0]),
    ),
}

NAMES = ("and", "or", "xor")

PRODUCTS = {
    "matrices": lambda d: (
        d["x"] @ d["y"].T,
        d["x"] @ d["y"][0],
        torch.dot(d["x"][0], d["y"][0]),
        torch.bmm(d["line"], d["line"].transpose(1, 2)),
        torch.addmm(d["x"][:, :3], d["x"], d["y"].T, beta=0.5, alpha=2),
        torch.addmv(d["x"][:, 0], d["x"], d["y"][0], alpha=3),
        torch.baddbmm(d["line"][:, :, :4], d["line"], d["line"].transpose(1, 2), beta=2),
        torch.einsum("ij,kj->ik", d["x"], d["y"]),
        F.linear(d["x"], d["y"], d["p"][:, 0]),
    ),
}

REDUCTIONS = {
    "sums": lambda d: (
        d["x"].sum(),
        d["x"].sum(1),
        d["x"].sum((0, 1), keepdim=True),
        d["i"].sum(0),
        (d["x"] > 0).sum(),
        d["x"].mean(),
        d["x"].mean(1, keepdim=True),
        d["i"].mean(0, dtype=torch.float64),
        d["x"].cumsum(1),
        d["i"].cumsum(0),
    ),
    "deviations": lambda d: (
        d["x"].var(),
        d["x"].var(1),
        d["x"].var(0, correction=0, keepdim=True),
        d["x"].std(1),
        torch.linalg.vector_norm(d["x"], dim=1),
        d["x"].norm(),
        torch.linalg.vector_norm(d["x"], 3, dim=0, keepdim=True),
        torch.linalg.vector_norm(d["x"], float("inf")),
        torch.linalg.vector_norm(d["x"], 1, dim=1),
        d["x"].logsumexp(1),
    ),
    "extrema": lambda d: (
        d["x"].amax(1),
        d["x"].amin((0, 1), keepdim=True),
        *d["x"].max(1),
        *d["x"].min(0, keepdim=True),
        d["x"].max(),
        d["x"].min(),
        d["x"].argmax(1),
        d["x"].argmin(),
        d["x"].argmin(0, keepdim=True),
        *d["x"].topk(2, dim=1),
        *d["x"].sort(1),
        *torch.sort(d["x"], dim=0, descending=True, stable=True),
    ),
    "products": lambda d: (d["x"].prod(), d["x"].prod(1, keepdim=True), d["i"].prod(0)),
    "somewhere": lambda d: (
        (d["x"] > 0.5).any(),
        (d["image"] > 0.8).any((1, 3)),
        d["i"].any(1),
        (d["i"] > 0).all(0),
    ),
}

NORMS = {
    "softmax": lambda d: (d["x"].softmax(1), d["x"].log_softmax(0)),
    "losses": lambda d: (
        F.cross_entropy(d["x"], d["i"][:, 0]),
        F.nll_loss(d["x"].log_softmax(1), d["i"][:, 1], reduction="sum"),
        F.mse_loss(d["x"], d["y"]),
        F.huber_loss(d["x"], 3 * d["y"]),
        F.binary_cross_entropy_with_logits(d["x"], (d["y"] > 0).double()),
        F.kl_div(d["x"].log_softmax(1), d["y"].softmax(1), reduction="batchmean"),
    ),
    "norms": lambda d: (
        F.layer_norm(d["x"], (4,), d["p"][0], d["y"][1], 1e-3),
        F.layer_norm(d["image"], (6, 5)),
        F.layer_norm(d["x"], (4,), d["p"][0]),
        F.group_norm(d["image"], 2, d["p"][0], d["y"][1]),
        F.group_norm(d["line"], 4),
        F.instance_norm(d["image"]),
        F.batch_norm(d["image"], d["y"][0].detach(), d["p"][0].detach(), d["p"][1], d["y"][1]),
        F.batch_norm(d["line"], d["y"][0].detach(), d["p"][0].detach()),
        F.batch_norm(d["line"], None, None, d["p"][0], d["y"][1], training=True),
        F.rms_norm(d["x"], (4,), d["p"][0]),
    ),
    "attention": lambda d: (
        F.scaled_dot_product_attention(*(d["image"][:, k : k + 2] for k in range(3))),
        F.scaled_dot_product_attention(*[d["image"]] * 3, is_causal=True),
        F.scaled_dot_product_attention(*[d["image"]] * 3, d["image"] @ d["image"].mT, scale=0.3),
    ),
    "dropout": lambda d: F.dropout(d["x"], 0.5, training=False),
}

WINDOWS = {
    "convolutions": lambda d: (
        F.conv2d(d["image"], d["image"][:, :, :3, :3], d["p"][0, :2], 2, 1),
        F.conv2d(d["image"], d["image"][:, :2, :2, :2], padding=(1, 0), dilation=2, groups=2),
        F.conv1d(d["line"], d["line"][:, :, :3], padding="same"),
        F.conv3d(d["volume"], d["volume"][:, :, :2, :2, :2]),
        F.conv_transpose2d(d["image"], d["image"].transpose(0, 1)[:, :, :3, :3], None, 2, 1, 1),
        F.conv_transpose1d(
            d["line"], d["line"].transpose(0, 1)[:, :, :2], d["p"][0, :2], dilation=2
        ),
    ),
    "pooling": lambda d: (
        F.max_pool2d(d["image"], 2),
        *F.max_pool2d(d["image"], 3, 2, 1, ceil_mode=True, return_indices=True),
        F.max_pool1d(d["line"], 3, 2),
        *F.max_pool3d(d["volume"], 2, 1, return_indices=True),
        F.avg_pool2d(d["image"], 2),
        F.avg_pool2d(d["image"], 3, 2, 1, ceil_mode=True, count_include_pad=False),
        F.avg_pool1d(d["line"], 3),
        F.avg_pool3d(d["volume"], 2),
        F.adaptive_avg_pool2d(d["image"], 1),
        F.adaptive_avg_pool2d(d["image"], (3, 2)),
        F.adaptive_avg_pool3d(d["volume"], 2),
        F.adaptive_avg_pool1d(d["line"], 3),
    ),
    "interpolation": lambda d: (
        F.interpolate(d["image"], scale_factor=2),
        F.interpolate(d["image"], (4, 7)),
        F.interpolate(d["line"], 5),
        F.interpolate(d["volume"], scale_factor=2),
        F.interpolate(d["image"], (9, 3), mode="bilinear"),
        F.interpolate(d["image"], scale_factor=1.7, mode="bilinear"),
        F.interpolate(d["image"], (9, 3), mode="bilinear", align_corners=True),
        F.interpolate(d["line"], 5, mode="linear"),
        F.interpolate(d["volume"], (3, 5, 4), mode="trilinear"),
        F.interpolate(d["image"], (8, 7), mode="bicubic"),
    ),
    "sampling": lambda d: (
        [
            F.grid_sample(d["image"], d["grid"], mode, padding, align)
            for mode, padding, align in (
                ("bilinear", "zeros", False),
                ("bilinear", "reflection", True),
                ("bicubic", "border", False),
            )
        ]
        + [
            F.grid_sample(
                d["volume"], d["volume"].flatten()[:81].view(1, 3, 3, 3, 3), align_corners=True
            )
        ]
    ),
}

ARRAYS = {
    "shapes": lambda d: (
        d["x"].view(2, 6),
        d["image"].permute(0, 2, 3, 1).reshape(-1, 4),
        d["x"].T.contiguous(),
        d["x"].unsqueeze(1).expand(-1, 2, -1),
        d["x"][0].expand(2, 4),
        d["volume"].squeeze(),
        d["volume"].squeeze(0),
        d["x"].flatten(),
        d["image"].movedim(1, 3),
        d["x"].double().float(),
        F.pixel_shuffle(d["image"], 2),
        torch.zeros_like(d["x"]).copy_(d["y"][0]),
    ),
    "parts": lambda d: (
        torch.cat([d["x"], d["i"]], -1),
        torch.cat([d["x"], torch.empty(0, dtype=torch.float64)]),
        torch.stack([d["x"], d["y"]], 1),
        *d["image"].split([1, 2, 1], 1),
        *d["line"].chunk(2, -1),
        *d["x"].unbind(1),
        d["line"][:, 1:-1, ::2],
        d["line"][..., -3:],
        d["x"][-1],
        d["x"].flip(0, 1),
        d["x"].roll(1, 1),
        d["x"].repeat(2, 1, 3),
        d["x"].tril(1),
        d["x"].triu(),
    ),
    "borders": lambda d: (
        F.pad(d["x"], (1, 2)),
        F.pad(d["image"], (1, -1, 0, 2), value=3.0),
        F.pad(d["image"], (1, 1, 2, 1), mode="reflect"),
        F.pad(d["image"], (1, 1, 2, 1), mode="replicate"),
        F.pad(d["line"], (2, 1), mode="circular"),
    ),
    "constants": lambda d: (
        torch.full((2, 3), 1.5) + d["x"].sum(),
        torch.zeros_like(d["x"]) + d["x"],
        d["x"].new_full((2,), 7.0) * d["x"][0, 0],
        torch.arange(2, 9, 3) * d["x"][0, :1],
        torch.full((), 2**53 + 1, dtype=torch.int64) + d["i"],
        torch.linspace(0, 1, 5, dtype=torch.float64) * d["x"][0, 0],
    ),
    "indices": lambda d: (
        F.embedding(d["i"], d["x"]),
        F.embedding(d["i"], d["x"], padding_idx=1),
        d["x"].index_select(1, d["i"][0]),
        d["x"].gather(1, d["i"]),
        d["x"].scatter(1, d["i"][:, :1], d["y"][:, :1]),
        d["x"].scatter(1, d["i"][:, :1], 2.0),
        d["x"].scatter_add(1, d["i"], d["y"]),
        d["x"][d["i"]],
        d["x"][:, d["i"][0] - 1],
        d["x"][d["i"][:, :1], d["i"]],
        d["image"][:, d["i"][0], d["i"][:, :1]],
        d["x"].index_put((d["i"].new_tensor([0, 2, 1]), d["i"][:, 1]), d["y"][0, 0]),
        d["x"].index_put((d["i"][:, 0],), d["y"], accumulate=True),
        torch.ops.aten.index_put(d["image"], [None, d["i"][0]], d["y"][0, :1], True),
        d["x"].masked_fill(d["y"] > 0, 2.0),
        d["x"].index_put((d["y"] > 0,), torch.tensor(2.0, dtype=torch.float64)),
        F.fold(d["p"].view(1, 4, 3), (2, 4), 2),
    ),
    "combined": lambda d: [
        d["x"].scatter_reduce(1, d["i"], 1.1 * d["y"], how)
        for how in ("sum", "prod", "mean", "amax", "amin")
    ],
    "diagonals": lambda d: (
        d["x"].diagonal(),
        d["image"].diagonal(1, 3, 2),
        d["image"].diagonal(-2, 1, 2),
        d["x"].trace(),
        torch.select_scatter(d["x"], d["y"][:, 1], 1, -2),
    ),
    "bags": lambda d: (
        [F.embedding_bag(d["i"], d["x"], mode=mode) for mode in ("sum", "mean", "max")]
        + [
            F.embedding_bag(d["i"].flatten(), d["x"], d["i"].new_tensor([0, 3, 3, 9]), mode=mode)
            for mode in ("sum", "mean", "max")
        ]
        + [
            F.embedding_bag(d["i"], d["x"], mode="sum", per_sample_weights=d["y"]),
            F.embedding_bag(d["i"], d["x"], mode="mean", padding_idx=1),
            F.embedding_bag(
                d["i"].flatten(), d["x"], d["i"].new_tensor([0, 5, 12]), include_last_offset=True
            ),
        ]
    ),
    "detached": lambda d: (d["x"].detach() * d["y"], (d["x"] - d["x"].detach()).exp()),
}

FAMILIES = {
    "arrays": ARRAYS,
    "elementwise": ELEMENTWISE,
    "norms": NORMS,
    "products": PRODUCTS,
    "reductions": REDUCTIONS,
    "windows": WINDOWS,
}


class Calls(torch.nn.Module):
    """The cases of a family, one after the other."""

    def __init__(self, cases):
        super().__init__()
        self.cases = cases

    def forward(self, **named):
        results = []
        for case in self.cases:
            result = case(named)
            results += [result] if isinstance(result, torch.Tensor) else list(result)
        return tuple(results)
