"""Modules whose function main is made channels-last."""

from graphgrad.ir.inline import inline_calls
from graphgrad.ir.write import write_program
from graphgrad.layout.channels_last import channels_last


def rewritten_module(mod, **options):
    """Return a module with main alone, channels-last, and its kernels."""
    return write_program(channels_last(inline_calls(mod, "main"), **options), "main")


def stays(mod):
    """Return whether main is left as it is."""
    program = inline_calls(mod, "main")
    return channels_last(program) is program
