"""Contractions on tensor cores: kernels of ours for bfloat16, float16 and TF32."""
