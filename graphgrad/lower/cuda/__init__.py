"""Kernels for NVIDIA GPUs: schedules, the check that none runs on the host, and the compiler.

Start with `schedule`, which takes the first of `rules` whose result is proved by `lowering`;
`stages` schedules by structure.
"""
