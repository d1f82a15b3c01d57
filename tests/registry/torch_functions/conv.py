"""What the ops of registry/conv.py are in torch."""

from tests.registry.torch_functions.layout import pair, to_layout


def functions(torch):
    """Return torch's function for each op that it has."""
    nn = torch.nn.functional

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

    return {
        "relax.nn.conv2d": conv2d,
    }
