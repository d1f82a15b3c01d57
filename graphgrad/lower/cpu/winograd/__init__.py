"""Convolutions with windows of 3 by 3 in fewer multiplications: Winograd's minimal filtering.

`form` recognizes them by what they compute, `choice` says whether it pays, and the nests of
`forward` and `weight` transform tiles of images and weights (`transforms`), multiply the results
(`multiply`) and transform the products, block by block, so that what lies between stays in caches.
"""

from .nest import nest_of

__all__ = ["nest_of"]
