"""What the ops of registry/elementwise.py are in torch."""


def functions(torch):
    """Return torch's function for each op that it has."""

    def number(value):
        return value if isinstance(value, torch.Tensor) else torch.tensor(value.value.numpy())

    return {
        "relax.abs": torch.abs,
        "relax.add": torch.add,
        "relax.atan2": torch.atan2,
        "relax.clip": torch.clamp,
        "relax.divide": torch.divide,
        "relax.erf": torch.erf,
        "relax.ewise_fma": lambda a, b, c: a * b + c,
        "relax.exp": torch.exp,
        "relax.floor_mod": torch.remainder,
        "relax.full": lambda shape, fill, dtype: fill.expand(shape),
        "relax.full_like": lambda x, fill: fill.expand(x.shape),
        "relax.log": torch.log,
        "relax.log_add_exp": torch.logaddexp,
        "relax.maximum": torch.maximum,
        "relax.minimum": torch.minimum,
        "relax.mod": torch.fmod,
        "relax.multiply": torch.multiply,
        "relax.negative": torch.negative,
        "relax.power": lambda a, b: torch.pow(number(a), number(b)),
        "relax.rsqrt": torch.rsqrt,
        "relax.sqrt": torch.sqrt,
        "relax.square": torch.square,
        "relax.subtract": torch.subtract,
        "relax.where": torch.where,
    }
