"""What the ops of registry/control.py are in torch."""


def functions(torch):
    """Return torch's function for each op that it has."""
    return {
        "relax.grad.start_checkpoint": lambda x: x * 1,
        "relax.grad.end_checkpoint": lambda x: x * 1,
    }
