"""What stock fusion does not do: fewer passes over large tensors.

Stock fusion puts maps into the kernel of their only reader. Around it, here,

- `items`: items of tuples are named by what they are, before fusion;
- `share`: small results that two kernels compute alike are computed once, before fusion;
- `repeat`: a map with several readers is computed in each of them, before fusion;
- `siblings`: reductions that read the same tensor share a kernel, after fusion;
- `chains`: kernels that compute by the same rows of tensors become one, after that.
"""

from .common_subexpressions import share_results
from .multi_output import fuse_siblings
from .recompute import recompute_maps
from .rowwise import fuse_rowwise
from .tuples import name_inner_tuples, replace_tuples

__all__ = [
    "fuse_rowwise",
    "fuse_siblings",
    "name_inner_tuples",
    "recompute_maps",
    "replace_tuples",
    "share_results",
]
