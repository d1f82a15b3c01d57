"""What each op is in torch: the second oracle of the rules, one file per file of the registry."""

import importlib
import pkgutil

from tests.peers import peer


def functions():
    """Return, for each op that torch has, a function of the sample's arguments and attributes.

    Such a function returns None for a sample that torch cannot express.
    """
    torch = peer("torch")
    merged = {}
    for module in pkgutil.iter_modules(__path__):
        family = importlib.import_module(f"{__name__}.{module.name}")
        merged.update(getattr(family, "functions", lambda _: {})(torch))
    return merged
