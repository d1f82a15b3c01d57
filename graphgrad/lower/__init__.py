"""From Relax to an executable: target, passes, schedules, machine code.

Start with `pipeline`, the list of passes; ``python -m graphgrad.lower`` prints it with the reasons
for its order. `graph` is before kernels, `fusion` joins them, `cpu` and `cuda` schedule them,
`codegen` makes machine code.
"""
