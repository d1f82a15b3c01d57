"""NVIDIA's cuDNN: contractions planned on any machine, and run on a GPU.

Nothing here needs TVM's compiler, or graphgrad: exports carry the package, and a process that plans
imports it alone. cuDNN itself is optional and is not copied into anything.
"""
