"""Reverse-mode differentiation of Relax functions.

Start with `vjp`, the transform of a module. `activity` finds the bindings that need a cotangent and
their rules, `reverse` is the reverse sweep over the bindings, and `apply` applies one rule to one
call. `derive` makes rules for ops that have none. `mutation` refuses programs whose writes to
memory would make gradients wrong.
"""
