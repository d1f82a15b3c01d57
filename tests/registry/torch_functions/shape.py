"""What the ops of registry/shape.py are in torch."""

from itertools import product


def functions(torch):
    """Return torch's function for each op that it has."""

    def layout_transform(x, index_map, pad_value=0.0):
        places = [index_map(*at) for at in product(*map(range, x.shape))]
        axes = [torch.tensor(axis) for axis in zip(*places, strict=True)]
        padding = torch.full([int(axis.max()) + 1 for axis in axes], pad_value, dtype=x.dtype)
        return padding.index_put(axes, x.reshape(-1))

    def permute_dims(x, axes=None):
        return x.permute(axes or list(reversed(range(x.ndim))))

    def squeeze(x, axis=None):
        axes = range(x.ndim) if axis is None else [axis] if isinstance(axis, int) else axis
        return x.squeeze(tuple(axes))

    def expand_dims(x, axis):
        axes = [axis] if isinstance(axis, int) else axis
        for position in sorted(a % (x.ndim + len(axes)) for a in axes):
            x = x.unsqueeze(position)
        return x

    def reshape(x, shape):
        extents = [x.shape[k] if d == 0 else d for k, d in enumerate(shape)]
        return x.reshape(extents)

    return {
        "relax.broadcast_to": lambda x, shape: x.broadcast_to(shape),
        "relax.collapse_sum_like": lambda x, like: x.sum_to_size(like.shape),
        "relax.collapse_sum_to": lambda x, shape: x.sum_to_size(shape),
        "relax.expand_dims": expand_dims,
        "relax.flatten": lambda x: x.flatten(),
        "relax.layout_transform": layout_transform,
        "relax.nn.batch_flatten": lambda x: x.reshape(x.shape[0], x.shape[1:].numel()),
        "relax.nn.pixel_shuffle": torch.nn.functional.pixel_shuffle,
        "relax.permute_dims": permute_dims,
        "relax.reshape": reshape,
        "relax.squeeze": squeeze,
    }
