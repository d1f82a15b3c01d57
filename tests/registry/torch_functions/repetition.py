"""What the ops of registry/repetition.py are in torch."""


def functions(torch):
    """Return torch's function for each op that it has."""

    def repeat(x, repeats, axis=None):
        return x.repeat_interleave(repeats, dim=axis)

    def tile(x, repeats):
        return x.tile([repeats] if isinstance(repeats, int) else repeats)

    return {
        "relax.flip": lambda x, axis: x.flip(axis),
        "relax.meshgrid": lambda vectors, indexing="ij": torch.meshgrid(
            *vectors, indexing=indexing
        ),
        "relax.repeat": repeat,
        "relax.tile": tile,
    }
