"""What the ops of registry/shape.py are in torch."""


def functions(torch):
    """Return torch's function for each op that it has."""

    def permute_dims(x, axes=None):
        return x.permute(axes or list(reversed(range(x.ndim))))

    def split(x, indices_or_sections, axis=0):
        return torch.tensor_split(x, indices_or_sections, dim=axis)

    return {
        "relax.concat": lambda parts, axis: torch.cat(parts, dim=axis),
        "relax.permute_dims": permute_dims,
        "relax.reshape": lambda x, shape: x.reshape(shape),
        "relax.split": split,
    }
