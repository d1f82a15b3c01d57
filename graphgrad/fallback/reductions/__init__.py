"""Gradients of reductions.

Start with `reduce`; `reduce_restated` states reductions by other combiners as stages whose
gradients are known.
"""
