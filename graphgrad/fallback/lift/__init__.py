"""Kernels lifted to tensor expressions: what loops over buffers compute, element by element.

Start with `prim_func`; `reading` makes `statements` of a function, `update` makes stages of stores.
``docs/kernels.md`` says what can be lifted.
"""
