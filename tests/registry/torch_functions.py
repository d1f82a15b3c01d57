"""What each op is in torch: the second oracle of the rules."""

from tests.peers import peer


def functions():
    """Return, for each op that torch has, a function of the sample's arguments and attributes."""
    torch = peer("torch")
    nn = torch.nn.functional

    def axes(attributes):
        return attributes.get("axis"), attributes.get("keepdims", False)

    def reduce(function):
        def reduced(x, **attributes):
            axis, keepdims = axes(attributes)
            axis = list(range(x.ndim)) if axis is None else axis
            return function(x, dim=axis, keepdim=keepdims)

        return reduced

    def pair(value):
        return (value, value) if isinstance(value, int) else tuple(value)

    def to_layout(x, source, target):
        return x.permute([source.index(axis) for axis in target])

    def conv2d(
        x,
        w,
        strides=1,
        padding=0,
        dilation=1,
        groups=1,
        data_layout="NCHW",
        kernel_layout="OIHW",
    ):
        pads = pair(padding)
        top, left, bottom, right = pads if len(pads) == 4 else (*pads, *pads)
        x = nn.pad(to_layout(x, data_layout, "NCHW"), (left, right, top, bottom))
        w = to_layout(w, kernel_layout, "OIHW")
        y = nn.conv2d(x, w, stride=pair(strides), dilation=pair(dilation), groups=groups)
        return to_layout(y, "NCHW", data_layout)

    def max_pool2d(
        x, pool_size, strides, padding=0, dilation=1, ceil_mode=False, layout="NCHW", **_
    ):
        pads = pair(padding)
        x = to_layout(x, layout, "NCHW")
        if len(pads) == 4:
            top, left, bottom, right = pads
            x, pads = nn.pad(x, (left, right, top, bottom), value=-float("inf")), 0
        y = nn.max_pool2d(
            x, pair(pool_size), pair(strides), pads, pair(dilation), ceil_mode=ceil_mode
        )
        return to_layout(y, "NCHW", layout)

    def avg_pool2d(
        x,
        pool_size,
        strides,
        padding=0,
        dilation=1,
        ceil_mode=False,
        count_include_pad=False,
        layout="NCHW",
    ):
        pads = pair(padding)
        if dilation != 1 or (len(pads) == 4 and pads[:2] != pads[2:]):
            return None  # torch pads both sides alike, and does not dilate
        x = to_layout(x, layout, "NCHW")
        y = nn.avg_pool2d(x, pair(pool_size), pair(strides), pads[:2], ceil_mode, count_include_pad)
        return to_layout(y, "NCHW", layout)

    def batch_norm(
        x,
        gamma,
        beta,
        mean,
        variance,
        axis,
        epsilon=1e-5,
        training=True,
        scale=True,
        center=True,
        **_,
    ):
        y = nn.batch_norm(
            x.movedim(axis, 1),
            mean.detach().clone(),
            variance.detach().clone(),
            gamma if scale else None,
            beta if center else None,
            training,
            eps=epsilon,
        )
        return y.movedim(1, axis)

    def nll_loss(p, t, w=None, reduction="mean", ignore_index=-100):
        w = w.detach() if w is not None else None  # torch has no derivative there; ours is checked
        return nn.nll_loss(p, t.long(), w, reduction=reduction, ignore_index=ignore_index)

    def cross_entropy_with_logits(x, y):
        return -(x * y).sum() / (x.shape[0] if x.ndim > 1 else 1)

    def permute_dims(x, axes=None):
        return x.permute(axes or list(reversed(range(x.ndim))))

    def split(x, indices_or_sections, axis=0):
        return torch.tensor_split(x, indices_or_sections, dim=axis)

    return {
        "relax.abs": torch.abs,
        "relax.add": torch.add,
        "relax.clip": torch.clamp,
        "relax.concat": lambda parts, axis: torch.cat(parts, dim=axis),
        "relax.cos": torch.cos,
        "relax.divide": torch.divide,
        "relax.exp": torch.exp,
        "relax.full_like": lambda x, fill: fill.expand(x.shape),
        "relax.log": torch.log,
        "relax.matmul": torch.matmul,
        "relax.max": reduce(torch.amax),
        "relax.maximum": torch.maximum,
        "relax.mean": reduce(torch.mean),
        "relax.min": reduce(torch.amin),
        "relax.minimum": torch.minimum,
        "relax.multiply": torch.multiply,
        "relax.negative": torch.negative,
        "relax.nn.avg_pool2d": avg_pool2d,
        "relax.nn.batch_norm": batch_norm,
        "relax.nn.conv2d": conv2d,
        "relax.nn.cross_entropy_with_logits": cross_entropy_with_logits,
        "relax.nn.log_softmax": lambda x, axis=-1: torch.log_softmax(x, axis),
        "relax.nn.max_pool2d": max_pool2d,
        "relax.nn.nll_loss": nll_loss,
        "relax.nn.relu": torch.relu,
        "relax.nn.silu": nn.silu,
        "relax.nn.softmax": lambda x, axis=-1: torch.softmax(x, axis),
        "relax.permute_dims": permute_dims,
        "relax.reshape": lambda x, shape: x.reshape(shape),
        "relax.rsqrt": torch.rsqrt,
        "relax.sigmoid": torch.sigmoid,
        "relax.sin": torch.sin,
        "relax.split": split,
        "relax.sqrt": torch.sqrt,
        "relax.square": torch.square,
        "relax.subtract": torch.subtract,
        "relax.sum": reduce(torch.sum),
        "relax.tanh": torch.tanh,
        "relax.where": torch.where,
    }
