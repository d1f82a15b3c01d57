"""What the ops of registry/elementwise.py are in torch."""


def functions(torch):
    """Return torch's function for each op that it has."""

    return {
        "relax.abs": torch.abs,
        "relax.add": torch.add,
        "relax.clip": torch.clamp,
        "relax.cos": torch.cos,
        "relax.divide": torch.divide,
        "relax.exp": torch.exp,
        "relax.full_like": lambda x, fill: fill.expand(x.shape),
        "relax.log": torch.log,
        "relax.maximum": torch.maximum,
        "relax.minimum": torch.minimum,
        "relax.multiply": torch.multiply,
        "relax.negative": torch.negative,
        "relax.rsqrt": torch.rsqrt,
        "relax.sin": torch.sin,
        "relax.sqrt": torch.sqrt,
        "relax.square": torch.square,
        "relax.subtract": torch.subtract,
        "relax.where": torch.where,
    }
