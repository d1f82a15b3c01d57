"""Shared subexpressions computed once: bindings by `Let`, each where it is safe to evaluate.

TVM compiles an expression as the tree that it prints as; what is shared must be bound to a
variable, or it is computed again for every use, and for uses of uses exponentially often.

A conditional evaluates one of its arms, so what is used in an arm alone is protected by its
condition: a load there may be outside its tensor otherwise, and a division by zero. A binding
stands where all uses see it (`Placement`). If that is outside a condition that protected them, and
what is bound is `fragile`, it gets the condition under which one of the uses happens: a load stays
guarded.

Conditions come before what they protect (`order_conditions_first`): a part that several arms share
can then use what the conditions were computed from. If they came later, that would be computed
twice, with all the conditions in it, and theirs.

Comparisons are not bound: TVM's analysis contradicts itself on a boolean variable that it meets
both in a condition and in what the condition decides.
"""

from .exposure import fragile
from .order import order_conditions_first
from .placement import Placement, Region
from .sharing import bind_in_regions, shared

__all__ = ["Placement", "Region", "bind_in_regions", "fragile", "order_conditions_first", "shared"]
