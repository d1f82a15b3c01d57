"""Which values of a Relax function may share memory, and where that memory is read and written.

Memory is partitioned into classes by union-find, in one pass over the bindings (Steensgaard,
*Points-to analysis in almost linear time*, POPL 1996): whatever may hand one value's memory to
another joins their classes. A called function of the module is analyzed once, and its result, the
summary, is applied to each call. Two values of different classes share no memory. One class,
`OUTSIDE`, is the memory that code outside of the module may hold: what packed functions keep, and
what they return of theirs.

The arguments of a call from outside are taken to share no memory with each other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import tvm
from tvm import relax

from .call_effects import record_call
from .regions import OUTSIDE, Leaf, Regions, Source, Tree, leaves


class Use(NamedTuple):
    """One read or write of memory.

    Attributes
    ----------
    position : int
        The time of the use: positions grow in the order of execution. The bindings of an If's two
        branches are numbered one branch after the other.
    path : tuple of (int, bool)
        The branches that the use is in, outermost first: the position of the If, and whether it is
        the branch of a true condition.
    binding : relax.Var
        The variable that the call is bound to.
    value : relax expression
        The argument that is used.
    leaf : Leaf
        The memory of that argument.
    writes : bool
        Whether the memory is written; else it is read.
    """

    position: int
    path: tuple[tuple[int, bool], ...]
    binding: Any
    value: Any
    leaf: Leaf
    writes: bool

    def excludes(self, path: tuple[tuple[int, bool], ...]) -> bool:
        """Whether no run comes through both this use and the branches of `path`."""
        branch_by_if = dict(path)
        return any(branch_by_if.get(position, branch) != branch for position, branch in self.path)


@dataclass(frozen=True)
class Constant:
    """One occurrence of a constant in a function.

    Attributes
    ----------
    location : relax.Var or relax.SeqExpr
        The variable of the binding in whose value the constant is, or the sequence whose result
        contains it.
    value : relax expression
        The constant.
    leaf : Leaf
        The memory of this occurrence. Each occurrence has its own, also of the same constant.
    """

    location: Any
    value: Any
    leaf: Leaf


class Module:
    """The functions that are analyzed together.

    Parameters
    ----------
    functions : mapping of tvm.ir.GlobalVar to functions
    views : bool
        Whether reshaping kernels in dataflow blocks count as views, which TVM makes of them later
        in lowering. Otherwise they count as copies.
    leaves_alone : callable, optional
        Given the name of a packed function that nothing is declared about, whether it is known to
        write to no memory. By default, each such function may write.
    """

    def __init__(
        self,
        functions: Mapping[Any, Any],
        views: bool = False,
        leaves_alone: Callable[[str], bool] = lambda name: False,
    ):
        self.functions = dict(functions.items())
        self.views = views
        self.leaves_alone = leaves_alone
        self._known: dict[Any, Aliases | None] = {}

    def function(self, name: Any) -> Aliases:
        """The alias analysis of a Relax function.

        Raises
        ------
        AliasError, ArgumentError
            What is declared of a packed function contradicts a call of it.
        """
        aliases = self.summary(name)
        assert aliases is not None
        return aliases

    def summary(self, name: Any) -> Aliases | None:
        """The alias analysis of a Relax function; None while it is under way (recursion)."""
        if name not in self._known:
            # A recursive call finds this None, and its caller assumes the worst of it.
            self._known[name] = None
            function = self.functions[name]
            self._known[name] = Aliases(self, function.params, function.body)
        return self._known[name]


class Aliases:
    """The alias analysis of one function: what may share memory, and the uses of that memory.

    A *tree* is the memory of a value; that of a tuple is a list (`graphgrad.memory.regions.Tree`).

    Attributes
    ----------
    params : list of Tree
        The memory of each parameter.
    result : Tree
        The memory of the result.
    values : dict
        From each variable to its tree.
    bound : dict
        From each variable to the position where it is bound; 0 for a parameter.
    calls : dict
        From each variable that a call is bound to, to the call.
    branches : dict
        From each variable that an If is bound to, to the trees of the branches' results, that of
        the true branch first.
    uses : list of Use
        In the order of their positions.
    constants : list of Constant
        Each occurrence of a constant.
    """

    def __init__(self, module: Module, params: Sequence[Any], body: Any):
        self.module = module
        self.values: dict[Any, Tree] = {}
        self.bound: dict[Any, int] = dict.fromkeys(params, 0)
        self.calls: dict[Any, Any] = {}
        self.branches: dict[Any, tuple[Tree, Tree]] = {}
        self.uses: list[Use] = []
        self.constants: list[Constant] = []
        self.regions = Regions()
        self._position = 0
        self._path: tuple[tuple[int, bool], ...] = ()
        self._location: Any = None
        self._by_region: dict[int, list[Use]] | None = None
        self._written: set[int] | None = None
        self._unused_allocations: set[Any] = set()
        for number, param in enumerate(params):
            self.values[param] = self.regions.fresh(param.ty, ("param", number))
        self.params = [self.values[param] for param in params]
        self.result = self.value(body)

    def region(self, leaf: Leaf) -> int:
        """The class of a leaf's memory: a number, equal where memory may be shared."""
        return self.regions.region(leaf)

    def regions_of(self, tree: Tree) -> set[int]:
        """The classes of a value's memory; those of two values overlap if they may share some."""
        return {self.region(leaf) for leaf in leaves(tree)}

    def origins(self, tree: Tree) -> list[Source]:
        """The sources of the tensors or objects that a value may be (`Regions.origins`)."""
        return [origin for leaf in leaves(tree) for origin in self.regions.origins(leaf)]

    def uses_of(self, region: int) -> list[Use]:
        """The uses of a class of memory, in order."""
        # The index is made once: classes no longer change when the body has been analyzed.
        if self._by_region is None:
            self._by_region = defaultdict(list)
            for use in self.uses:
                self._by_region[self.region(use.leaf)].append(use)
        return self._by_region.get(region, [])

    def is_written(self, region: int) -> bool:
        """Whether the function, or a function that it calls, may write to a class of memory."""
        if self._written is None:
            self._written = {self.region(use.leaf) for use in self.uses if use.writes}
        return region in self._written

    def escaping(self) -> set[int]:
        """The classes of the memory that may still be used when the function has returned."""
        return {OUTSIDE, *self.returned()}

    def returned(self) -> set[int]:
        """The classes of the memory that the function returns."""
        return self.regions_of(self.result)

    def value(self, expr: Any, var: Any = None) -> Tree:
        """The tree of an expression; None if it has no memory.

        Parameters
        ----------
        expr : relax expression
        var : relax.Var, optional
            The variable that it is bound to.
        """
        if isinstance(expr, tvm.ir.Var):
            try:
                return self.values[expr]
            except KeyError:
                # The body of a local function may read a variable of the function around it.
                self.values[expr] = self.regions.fresh(expr.ty, ("free", expr))
                return self.values[expr]
        if isinstance(expr, relax.SeqExpr):
            return self._sequence(expr)
        if isinstance(expr, tvm.ir.GenericConst):
            if not isinstance(expr.ty, relax.TensorType):
                return None
            leaf = Leaf(self.regions.node(), ("constant", len(self.constants)))
            self.constants.append(Constant(self._location, expr, leaf))
            return leaf
        if isinstance(expr, relax.Tuple):
            return [self.value(field) for field in expr.fields]
        if isinstance(expr, relax.TupleGetItem):
            tuple_tree = self.value(expr.tuple_value)
            # Of a tuple whose members are not told apart, each may be all of its memory.
            return tuple_tree[expr.index] if isinstance(tuple_tree, list) else tuple_tree
        if isinstance(expr, relax.If):
            return self._if(expr, var)
        if isinstance(expr, relax.Function):
            return self.closure([self.value(v) for v in relax.analysis.free_vars(expr)], var)
        if isinstance(expr, tvm.ir.Call):
            self.calls[var] = expr
            return record_call(self, expr, var)
        return None

    def _sequence(self, expr: relax.SeqExpr) -> Tree:
        for block in expr.blocks:
            for binding in block.bindings:
                self._position += 1
                self._location = binding.var
                self.bound[binding.var] = self._position
                tree = self.value(binding.value, binding.var)
                source = ("call", binding.var)
                # The type of the variable may tell more of the value than the value's own, as in a
                # cast.
                self.values[binding.var] = self.regions.as_type(tree, binding.var.ty, source)
        self._location = expr
        return self.value(expr.body)

    def _if(self, expr: relax.If, var: Any) -> Tree:
        self.use(expr.cond, self.value(expr.cond), var, writes=False)
        if_position, outer = self._position, self._path
        trees = []
        for is_true, branch in ((True, expr.true_branch), (False, expr.false_branch)):
            self._path = (*outer, (if_position, is_true))
            tree = self.value(branch)
            trees.append(self.regions.as_type(tree, expr.ty, ("branch", var, is_true)))
        self._path = outer
        result = self.regions.fresh(expr.ty, ("if", var))
        self.regions.choose(result, *trees)
        self.branches[var] = (trees[0], trees[1])
        return result

    def closure(self, captured: list[Tree], var: Any) -> Tree:
        """The memory of an object that keeps the captured values: one class with theirs."""
        closure = Leaf(self.regions.node(), ("call", var))
        self.regions.unify(closure, captured)
        return closure

    def allocated(self, call: Any, var: Any) -> Tree:
        """The memory of a new tensor."""
        tree = self.regions.fresh(call.ty, ("call", var))
        self._unused_allocations |= {leaf.node for leaf in leaves(tree)}
        return tree

    def is_unused(self, value: Any) -> bool:
        """Whether a value is memory that has been allocated, and that no call has used so far."""
        return any(leaf.node in self._unused_allocations for leaf in leaves(self.values.get(value)))

    def use(self, value: Any, tree: Tree, var: Any, writes: bool) -> None:
        """Record that the call bound to `var` reads the memory of an argument, or writes to it."""
        for leaf in leaves(tree):
            self._unused_allocations.discard(leaf.node)
            self.uses.append(Use(self._position, self._path, var, value, leaf, writes))
