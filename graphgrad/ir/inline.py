"""Inlining: a Relax function as a straight line of bindings, without calls of Relax functions.

A function is inlined once, with its symbolic dimensions. `bind_extents` makes programs of concrete
shapes from the result.

TVM's own gradient pass skips calls of other Relax functions and returns zeros for what they
compute. Here they are inlined before the reverse sweep, which therefore never meets one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from ..errors import ArgumentError, NotDifferentiableError
from ..tvm_fixes.hooks import set_type
from .kernel_structure import substitute_values
from .program import Program, variables_in
from .rewrite import map_bindings, replace_body
from .value_names import name_aliases_of

RULES = ("auto", "derived")
"""``"auto"``: all gradient rules; ``"derived"``: all but graphgrad's own, which are derived."""


def inline_calls(mod: tvm.IRModule, name: str, rules: str = "auto") -> Program:
    """A function of a module as a `Program`, with every call of a Relax function inlined.

    Parameters
    ----------
    mod : IRModule
    name : str
        Name of a Relax function in it.
    rules : "auto" or "derived"
        Which gradient rules it is differentiated by, see `Program`.

    Raises
    ------
    ArgumentError
        There is no Relax function of that name, or `rules` is neither.
    NotDifferentiableError
        The function calls itself: the trip count depends on data.
    """
    if not isinstance(mod, tvm.IRModule):
        raise ArgumentError(f"expected an IRModule, given a {type(mod).__name__}")
    if rules not in RULES:
        raise ArgumentError(f"rules={rules!r}: expected {' or '.join(map(repr, RULES))}")
    function = _normal(_function(mod, name))
    copy = relax.utils.copy_with_new_vars(function)
    pure = bool(function.is_pure)
    program = Program(name, list(copy.params), pure=pure, dataflow=pure, rules=rules)
    program.aliases = name_aliases_of(function)
    program.kernels = {
        variable: mod[variable]
        for variable in mod.get_global_vars()
        if isinstance(mod[variable], tvm.tirx.PrimFunc)
    }
    program.renamed = dict(zip(_bound_variables(function), _bound_variables(copy), strict=True))
    program.result = _Inliner(mod, program, function).append(copy.body)
    return program


def bind_extents(program: Program, extents: Mapping[Any, int]) -> Program:
    """A program for concrete shapes, with new variables.

    Parameters
    ----------
    program : Program
        Not changed.
    extents : mapping
        Symbolic dimensions of its parameters to their extents.
    """
    body = program.body()
    if not program.dataflow:
        # TVM binds dataflow variables nowhere but in dataflow blocks.
        inner = [var for var, _ in program.bindings if isinstance(var, relax.DataflowVar)]
        body = substitute_values(body, {var: relax.Var(var.name, var.ty) for var in inner})
    ty = program.result.ty
    set_type(body, ty)
    function = relax.Function(program.params, body, ty, is_pure=program.pure)
    copy = relax.utils.copy_with_new_vars(function.bind_symbolic_vars(extents))
    names = dict(zip(program.variables(), _bound_variables(copy), strict=True))
    return replace(straight_line(copy, program), renamed=names)


def straight_line(function: relax.Function, program: Program) -> Program:
    """A function that calls no Relax function, as a program.

    Parameters
    ----------
    function : relax.Function
    program : Program
        What the function was made of: gives the name, the kernels and the rules.
    """
    line = replace(
        program,
        params=list(function.params),
        bindings=[],
        result=function.body.body,
        dataflow=program.pure,
        renamed={},
        derived={},
    )
    for block in function.body.blocks:
        for binding in block.bindings:
            _append(line, binding.var, binding if _is_cast(binding) else binding.value)
    return line


def _function(mod: tvm.IRModule, name: str) -> relax.Function:
    names = {gv.name_hint: gv for gv in mod.get_global_vars()}
    function = mod[names[name]] if name in names else None
    if not isinstance(function, relax.Function):
        relax_names = [n for n, gv in names.items() if isinstance(mod[gv], relax.Function)]
        raise ArgumentError(
            f"the module has no Relax function {name!r}; it has {sorted(relax_names)}"
        )
    return function


def _normal(function: relax.Function) -> relax.Function:
    """The function with the source of each cast bound to a variable.

    Copying a function would add such bindings, and variables of the function and of its copy are
    matched one by one.
    """
    blocks = map_bindings(function.body.blocks, _bind_cast_source)
    sizes = [
        [len(binding.bindings) for binding in body_blocks]
        for body_blocks in (blocks, function.body.blocks)
    ]
    if sizes[0] == sizes[1]:
        return function
    return replace_body(function, relax.SeqExpr(blocks, function.body.body))


def _bind_cast_source(binding: relax.Binding) -> list[relax.Binding]:
    if not isinstance(binding, relax.MatchCast) or isinstance(binding.value, relax.Var):
        return [binding]
    source = relax.Var(f"{binding.var.name}_source", binding.value.ty)
    cast = relax.MatchCast(binding.var, source, binding.ty)
    return [relax.VarBinding(source, binding.value), cast]


def _bound_variables(function: relax.Function) -> list[Any]:
    """The parameters of a function and the variables that its body binds, in order."""
    bindings = [b.var for block in function.body.blocks for b in block.bindings]
    return [*function.params, *bindings]


class _Inliner:
    """Appends the bindings of a body to a program, and those of the functions that it calls.

    Attributes
    ----------
    stack : list of (relax.Function, str)
        The functions that are being inlined, outermost first, and their names.
    local_functions : dict
        From a variable to the function that it is bound to.
    """

    def __init__(self, mod: tvm.IRModule, program: Program, function: relax.Function):
        self.mod = mod
        self.program = program
        self.stack = [(function, program.name)]
        self.local_functions: dict[Any, relax.Function] = {}

    def append(self, body: Any) -> Any:
        """Append a body's bindings to the program; the expression of its value."""
        if not isinstance(body, relax.SeqExpr):
            return body
        for block in body.blocks:
            for binding in block.bindings:
                self._binding(binding)
        return body.body

    def _binding(self, binding: Any) -> None:
        var = binding.var
        value = binding.value
        if _is_cast(binding):
            _append(self.program, var, binding)
            return
        if isinstance(value, relax.Function):
            self.local_functions[var] = value
        elif isinstance(value, relax.SeqExpr):
            value = self.append(value)
        elif isinstance(value, relax.Call):
            callee, label = self._callee(value.op)
            if callee is not None:
                value = self._inline(callee, value.args, label)
        elif isinstance(value, relax.If):
            value = self._inline_branches(value)
        if isinstance(value, relax.Var) and value in self.local_functions:
            self.local_functions[var] = self.local_functions[value]
        _append(self.program, var, value)

    def _inline_branches(self, value: relax.If) -> relax.If:
        branches = [self._branch(branch) for branch in (value.true_branch, value.false_branch)]
        inlined = relax.If(value.cond, *branches, value.span)
        set_type(inlined, value.ty)
        return inlined

    def _branch(self, body: relax.SeqExpr) -> relax.SeqExpr:
        """A branch with every call of a Relax function inlined."""
        outer, self.program.bindings = self.program.bindings, []
        result = self.append(body)
        bindings, self.program.bindings = self.program.bindings, outer
        # A gradient repeats the branch, and no variable may be bound twice, in a function neither.
        read = {*variables_in(result), *(v for _, value in bindings for v in variables_in(value))}
        bindings = [b for b in bindings if b[0] in read or not isinstance(b[1], relax.Function)]
        bound = [
            value if isinstance(value, relax.MatchCast) else relax.VarBinding(var, value)
            for var, value in bindings
        ]
        # What was inlined may have been in a dataflow block, but a branch is none.
        names = {
            var: relax.Var(var.name, var.ty)
            for var, _ in bindings
            if isinstance(var, relax.DataflowVar)
        }
        branch = substitute_values(relax.SeqExpr([relax.BindingBlock(bound)], result), names)
        set_type(branch, body.ty)
        return branch

    def _callee(self, op: Any) -> tuple[relax.Function | None, str]:
        """The Relax function that a call calls, and its name; None of a kernel, an op or others."""
        if isinstance(op, tvm.ir.GlobalVar):
            function = self.mod[op]
            return (function if isinstance(function, relax.Function) else None), op.name_hint
        if isinstance(op, relax.Var):
            return self.local_functions.get(op), op.name
        return None, ""

    def _inline(self, callee: relax.Function, arguments: Any, label: str) -> Any:
        """Append the bindings of a called function; the expression of the call's value.

        Raises
        ------
        NotDifferentiableError
            The function is being inlined already.
        """
        if any(callee.same_as(running) for running, _ in self.stack):
            chain = " → ".join([*(name for _, name in self.stack), label])
            raise NotDifferentiableError(
                f"{chain}: a function that calls itself has a data-dependent trip count and "
                "cannot be differentiated; write the loop with a fixed number of steps"
            )
        copy = relax.utils.copy_with_new_vars(callee)
        if not callee.is_pure:
            arguments = [self._bound(argument) for argument in arguments]
        bound = copy.bind_params(dict(zip(copy.params, arguments, strict=True)))
        self.stack.append((callee, label))
        result = self.append(bound.body)
        self.stack.pop()
        return result

    def _bound(self, argument: Any) -> Any:
        """An argument of an impure function; a constant is bound to a variable.

        If the function overwrites the constant, all its uses must see the same changed tensor.
        """
        if not isinstance(argument, tvm.ir.GenericConst):
            return argument
        var = relax.Var("constant", argument.ty)
        self.program.bindings.append((var, argument))
        return var


def _append(program: Program, var: Any, value: Any) -> None:
    """Append a binding to a program; `value` is the binding itself where that is a cast."""
    program.dataflow = program.dataflow and _fits_dataflow(value)
    program.bindings.append((var, value))


def _is_cast(binding: Any) -> bool:
    """Whether a binding is a cast that changes the type of its value."""
    return isinstance(binding, relax.MatchCast) and not tvm_ffi.structural_equal(
        binding.value.ty, binding.var.ty
    )


def _fits_dataflow(value: Any) -> bool:
    """Whether a binding's value may stand in a dataflow block: no control flow, known as pure."""
    # TVM's fusion overlooks, in a dataflow block, that a cast reads its source.
    if isinstance(value, relax.If | relax.MatchCast):
        return False
    if not isinstance(value, relax.Call):
        return True
    if isinstance(value.op, tvm.ir.Op):
        return bool(value.op.get_attr("FPurity"))
    return False
