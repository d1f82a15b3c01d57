"""What stock fusion does not do: fewer passes over large tensors.

Stock fusion puts maps into the kernel of their only reader. Around it, here,

- `items`: items of tuples are named by what they are, before fusion;
- `share`: small results that two kernels compute alike are computed once, before fusion;
- `repeat`: a map with several readers is computed in each of them, before fusion;
- `siblings`: reductions that read the same tensor share a kernel, after fusion;
- `chains`: kernels that compute by the same rows of tensors become one, after that.
"""

from .common_subexpressions import with_shared_results
from .multi_output import with_siblings_joined
from .recompute import with_repeated_maps
from .rowwise import with_row_chains
from .tuples import with_items_for_tuples, with_known_inner_tuples

__all__ = [
    "with_items_for_tuples",
    "with_known_inner_tuples",
    "with_repeated_maps",
    "with_row_chains",
    "with_shared_results",
    "with_siblings_joined",
]
