"""What the ops of registry/softmax.py are in torch."""


def functions(torch):
    """Return torch's function for each op that it has."""

    return {
        "relax.nn.log_softmax": lambda x, axis=-1: torch.log_softmax(x, axis),
        "relax.nn.softmax": lambda x, axis=-1: torch.softmax(x, axis),
    }
