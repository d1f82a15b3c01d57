"""Fusions that TVM's own ("stock") fusion does not do, for fewer passes over large tensors.

Stock fusion puts maps into the kernel of their only reader. Around it, here,

- `tuples`: a reader of a tuple's item reads the item itself, before fusion;
- `common_subexpressions`: small results that two kernels compute alike are computed once, before;
- `reductions`: sums that TVM takes for contractions are told as reductions, before;
- `recompute`: a map with several readers is computed in each of them, before fusion;
- `unread_results`: kernels return no large results that nothing reads, after fusion;
- `multi_output`: reductions that read the same tensor share a kernel, after fusion;
- `rowwise`: kernels that compute by the same rows of tensors become one, after that;
- `sibling_maps`: kernels that call the same functions at the same points become one, after that;
- `accumulate`: the addition to a gradient's accumulator goes into the gradient's kernel, last.

`joining` finds calls to join, and `merge` and `side_by_side` make one kernel of two. Where stock
fusion fails, `fusable` leaves it out.
"""

from .common_subexpressions import share_results
from .fusable import decide_fusion
from .multi_output import fuse_siblings
from .recompute import recompute_maps
from .reductions import annotate_reductions
from .rowwise import fuse_rowwise
from .sibling_maps import fuse_maps
from .tuples import name_inner_tuples, replace_tuples
from .unread_results import drop_unread_results

__all__ = [
    "annotate_reductions",
    "decide_fusion",
    "drop_unread_results",
    "fuse_maps",
    "fuse_rowwise",
    "fuse_siblings",
    "name_inner_tuples",
    "recompute_maps",
    "replace_tuples",
    "share_results",
]
