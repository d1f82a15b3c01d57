"""What the ops of registry/activation.py are in torch."""


def functions(torch):
    """Return torch's function for each op that it has."""
    nn = torch.nn.functional

    return {
        "relax.tanh": torch.tanh,
        "relax.sigmoid": torch.sigmoid,
        "relax.nn.relu": torch.relu,
        "relax.nn.silu": nn.silu,
    }
