"""What the ops of registry/pool.py are in torch."""

from tests.registry.torch_functions.layout import pair, to_layout


def functions(torch):
    """Return torch's function for each op that it has."""
    nn = torch.nn.functional

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

    return {
        "relax.nn.avg_pool2d": avg_pool2d,
        "relax.nn.max_pool2d": max_pool2d,
    }
