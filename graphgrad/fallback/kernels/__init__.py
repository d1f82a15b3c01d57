"""Kernels made of tensor expressions, and the kernels of their gradients.

Start with `gradient`; `expressions` finds what a kernel computes, `saved` decides which residuals
its forward kernel hands over.
"""
