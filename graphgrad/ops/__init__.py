"""Ops and functions that rules, importers and lowering have in common, and Relax ops of our own.

An op is worth defining where high-level identity must survive lowering. Start with `define` and any
family, such as `pool`; `functional` is the vocabulary of rules, `legalize` lowers TVM's ops.
"""
