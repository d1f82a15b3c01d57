"""Schedules for processors.

Start with `schedule`, which chooses by the structure of a kernel's stages: `map`, `reduction`, or a
nest of `contraction`, `winograd`, `rowwise` or `permutation`. `tuning` describes a processor's
vector registers, `features` what its code may use.
"""
