"""Kernels for NVIDIA GPUs: schedules, the check that none runs on the host, and the compiler."""
