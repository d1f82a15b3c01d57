"""What the ops of registry/cumulative.py are in torch."""


def functions(torch):
    """Return torch's function for each op that it has."""

    def line(x, axis):
        return (x.reshape(-1), 0) if axis is None else (x, axis)

    def cumsum(x, axis=None, dtype=None, exclusive=False):
        x, axis = line(x, axis)
        y = torch.cumsum(x, axis)
        return y - x if exclusive else y

    def cumprod(x, axis=None, dtype=None, exclusive=False):
        x, axis = line(x, axis)
        if exclusive:
            x = torch.cat([torch.ones_like(x.narrow(axis, 0, 1)), x], axis).narrow(
                axis, 0, x.shape[axis]
            )
        return torch.cumprod(x, axis)

    return {"relax.cumprod": cumprod, "relax.cumsum": cumsum}
