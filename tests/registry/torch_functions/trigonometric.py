"""What the ops of registry/trigonometric.py are in torch."""

NAMES = ["acos", "acosh", "asin", "asinh", "atan", "atanh"]
NAMES += ["cos", "cosh", "sin", "sinh", "tan", "tanh"]


def functions(torch):
    """Return torch's function for each op that it has."""
    return {f"relax.{name}": getattr(torch, name) for name in NAMES}
