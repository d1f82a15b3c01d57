"""Convolutions with windows of 3 by 3 in fewer multiplications: Winograd's minimal filtering.

Tiles of the images and the windows of weights are transformed into *factors*. Their *products*,
summed over the channels, are transformed back into tiles of the result. `form` recognizes such
convolutions by what they compute, and `choice` decides whether minimal filtering pays. The nests of
`forward` and `weight` transform (`transforms`), multiply (`multiply`) and transform back, block by
block, so that factors and products stay in caches.
"""

from .nest import nest_of

__all__ = ["nest_of"]
