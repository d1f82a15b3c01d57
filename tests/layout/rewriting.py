"""Modules whose function main is made channels-last."""

from graphgrad.ir.inline import linearize
from graphgrad.ir.write import write_program
from graphgrad.layout.channels_last import channels_last


def rewritten_module(mod, **options):
    """Return a module with main alone, channels-last, and its kernels."""
    return write_program(channels_last(linearize(mod, "main"), **options), "main")


def stays(mod):
    """Return whether main is left as it is."""
    program = linearize(mod, "main")
    return channels_last(program) is program
