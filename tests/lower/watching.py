"""What a pass is given, and what it makes of that, while a program is lowered."""

import tvm

from graphgrad.lower.pipeline import lower


@tvm.ir.instrument.pass_instrument
class _Watch:
    def __init__(self, name):
        self.watched = name
        self.before = self.after = None

    def run_before_pass(self, mod, info):
        if info.name == self.watched:
            self.before = mod

    def run_after_pass(self, mod, info):
        if info.name == self.watched:
            self.after = mod


def around(name, mod, target):
    """Return a module before and after a pass of ours, on the way of another one down."""
    watch = _Watch(f"graphgrad.{name}")
    with tvm.transform.PassContext(instruments=[watch]):
        lower(mod, target)
    return watch.before, watch.after
