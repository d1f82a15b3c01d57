"""From Relax to an executable: target, passes, schedules, machine code.

Start with `pipeline`, the list of passes; ``python -m graphgrad.lower`` prints it with the reasons
for its order. `graph` makes kernels of ops, `fusion` joins them, `cpu` and `cuda` schedule them,
`codegen` makes machine code.
"""
