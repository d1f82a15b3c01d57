"""What the ops of registry/slicing.py are in torch."""


def functions(torch):
    """Return torch's function for each op that it has."""

    def slice_scatter(x, source, start, end, step, axis=0):
        return torch.slice_scatter(x, source, axis, start, end, step)

    def split(x, indices_or_sections, axis=0):
        if isinstance(indices_or_sections, list):
            return torch.tensor_split(x, indices_or_sections, dim=axis)
        return x.split(-(-x.shape[axis] // indices_or_sections), dim=axis)

    def strided_slice(x, axes, begin, end, strides=None, assume_inbound=False):
        strides = strides or [1] * len(axes)
        for axis, first, last, step in zip(axes, begin, end, strides, strict=True):
            order = list(range(x.shape[axis]))[first:last:step]
            x = x.index_select(axis, torch.tensor(order, dtype=torch.int64))
        return x

    return {
        "relax.concat": lambda parts, axis: torch.cat(parts, dim=axis),
        "relax.slice_scatter": slice_scatter,
        "relax.split": split,
        "relax.stack": lambda parts, axis: torch.stack(parts, dim=axis),
        "relax.strided_slice": strided_slice,
        "relax.tril": torch.tril,
        "relax.triu": torch.triu,
    }
