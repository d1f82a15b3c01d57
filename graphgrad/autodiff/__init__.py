"""Reverse-mode differentiation of Relax functions.

Start with `vjp`, the transform of a module. `activity` says which bindings need a cotangent and
asks for their rules, `reverse` sweeps, `apply` does for one call what its rule leaves out. Ops
without a rule get one from `derive`.
"""
