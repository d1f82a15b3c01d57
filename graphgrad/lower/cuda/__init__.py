"""Kernels for NVIDIA GPUs: schedules, the check that none runs on the host, and the compiler.

Start with `schedule`, which takes the first of `rules` whose result passes the check of `lowering`;
`stages` schedules by structure.
"""
