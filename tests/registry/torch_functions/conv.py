"""What the ops of registry/conv.py are in torch."""

from tests.registry.torch_functions.layout import to_layout

SPATIAL = {1: "W", 2: "HW", 3: "DHW"}


def functions(torch):
    """Return torch's function for each op that it has."""
    nn = torch.nn.functional

    def per_axis(rank, value):
        return (value,) * rank if isinstance(value, int) else tuple(value)

    def ends(rank, padding):
        pads = per_axis(rank, padding)
        pads = pads if len(pads) == 2 * rank else (*pads, *pads)
        return pads[:rank], pads[rank:]

    def conv(rank):
        def function(
            x,
            w,
            strides=1,
            padding=0,
            dilation=1,
            groups=1,
            data_layout=None,
            kernel_layout=None,
            out_layout=None,
        ):
            standard = "NC" + SPATIAL[rank], "OI" + SPATIAL[rank]
            before, after = ends(rank, padding)
            flat = [p for both in zip(before[::-1], after[::-1], strict=True) for p in both]
            x = nn.pad(to_layout(x, data_layout or standard[0], standard[0]), flat)
            w = to_layout(w, kernel_layout or standard[1], standard[1])
            y = getattr(nn, f"conv{rank}d")(x, w, stride=strides, dilation=dilation, groups=groups)
            return to_layout(y, standard[0], out_layout or data_layout or standard[0])

        return function

    def transposed(rank):
        def function(
            x,
            w,
            strides=1,
            padding=0,
            output_padding=0,
            dilation=1,
            groups=1,
            data_layout=None,
            kernel_layout=None,
            out_layout=None,
        ):
            standard = "NC" + SPATIAL[rank], "IO" + SPATIAL[rank]
            x = to_layout(x, data_layout or standard[0], standard[0])
            w = to_layout(w, kernel_layout or standard[1], standard[1])
            y = getattr(nn, f"conv_transpose{rank}d")(
                x,
                w,
                stride=strides,
                output_padding=output_padding,
                dilation=dilation,
                groups=groups,
            )
            for axis, (before, after) in enumerate(zip(*ends(rank, padding), strict=True)):
                y = y.narrow(2 + axis, before, y.shape[2 + axis] - before - after)
            return to_layout(y, standard[0], out_layout or data_layout or standard[0])

        return function

    return {
        **{f"relax.nn.conv{rank}d": conv(rank) for rank in SPATIAL},
        **{f"relax.nn.conv{rank}d_transpose": transposed(rank) for rank in SPATIAL},
    }
