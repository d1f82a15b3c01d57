"""What the ops of registry/padding.py are in torch."""


def functions(torch):
    """Return torch's function for each op that it has."""

    def pad(x, pad_width, pad_mode="constant", pad_value=0.0):
        if pad_mode == "constant":
            pairs = zip(pad_width[::2], pad_width[1::2], strict=True)
            widths = [width for pair in reversed(list(pairs)) for width in pair]
            return torch.nn.functional.pad(x, widths, value=pad_value)
        for axis, extent in enumerate(x.shape):
            before, after = pad_width[2 * axis : 2 * axis + 2]
            x = x.index_select(axis, _copied(before, after, extent, pad_mode))
        return x

    def _copied(before, after, extent, mode):
        at = torch.arange(-before, extent + after)
        if mode == "replicate":
            return at.clamp(0, extent - 1)
        if mode == "circular":
            return at % extent
        period = max(2 * (extent - 1), 1)
        return torch.minimum(at % period, (period - at) % period)

    return {"relax.nn.pad": pad}
