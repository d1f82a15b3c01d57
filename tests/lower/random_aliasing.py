"""Random programs that alias, call, branch and mutate."""

import numpy as np
from tvm import relax

from tests.lower import aliasing
from tests.lower.aliasing import DTYPE, SHAPE, TENSOR, call

op = relax.op


class Author:
    """Writes one random program into a module.

    Parameters
    ----------
    builder : relax.BlockBuilder
    random : random.Random
    name : str
        Of the program; those of the functions that it calls begin with it.
    calm : bool
        What is changed in memory is not used afterwards under a name that is known to mean it,
        so that many programs have gradients.
    """

    def __init__(self, builder, random, name, calm=False):
        self.builder, self.random, self.name, self.calm = builder, random, name, calm
        self.condition = None
        self.in_branch = False
        self.declared = calm or random.random() < 0.6
        self.callees = []

    def write(self, donations):
        """Write the function, which asks for `donations` of parameters to outputs."""
        for number in range(2):
            self._callee(f"{self.name}_callee{number}")
        count = self.random.randint(2, 3)
        params = [relax.Var(f"x{i}", TENSOR) for i in range(count)]
        self.condition = relax.Var("condition", relax.TensorType((), "bool"))
        with self.builder.function(self.name, [*params, self.condition], pure=False):
            names = self._statements(list(params), self.random.randint(3, 8), depth=0)
            names.append(self._ops(names, 1))
            last = self.random.choice(names if self.calm else params)
            total = self.builder.emit(op.add(last, names[-1]))
            if not self.calm:
                self._statements(names, self.random.randint(0, 2), depth=1)
                # Read what may have been overwritten, if donation is wrong.
                names.append(self.builder.emit(op.sin(self._one_of([*params, *names]))))
            others = [self._one_of(names) for _ in range(self.random.randint(0, 3))]
            results = [total, names[-1], *others]
            self.builder.emit_func_output(relax.Tuple(results))
        pairs = dict(
            zip(
                self.random.sample(range(count), donations),
                range(len(results)),
                strict=False,
            )
        )
        return [[parameter, output] for parameter, output in pairs.items()]

    def _callee(self, name):
        params = [relax.Var(f"a{i}", TENSOR) for i in range(2)]
        with self.builder.function(name, params, pure=False, private=True):
            names = self._statements(list(params), self.random.randint(1, 3), depth=2)
            variable = self.builder.emit_func_output(self._one_of(names))
        self.callees.append(variable)

    def _one_of(self, names):
        # What is old is as likely as what is new, so that aliases live on.
        return self.random.choice(names[-4:] if self.random.random() < 0.5 else names)

    def _statements(self, names, count, depth):
        kinds = [self._ops, self._effect, self._alias, self._packed, self._constant]
        if depth < 2:
            kinds += [self._if, self._calls, self._closure, self._effect]
        for _ in range(count):
            names.append(self.random.choice(kinds)(names, depth))
        return names

    def _op(self, names):
        x, y = self._one_of(names), self._one_of(names)
        kind = self.random.choice(["add", "subtract", "multiply", "sin", "reshape"])
        if kind == "sin":
            return op.sin(x)
        if kind == "reshape":
            return op.reshape(self.builder.emit(op.reshape(x, (2, 2))), SHAPE)
        return getattr(op, kind)(x, y)

    def _ops(self, names, depth):
        """Emit a few ops in a dataflow block, of which one result, or a tuple, leaves it."""
        if self.in_branch:
            return self.builder.emit(self._op(names))
        with self.builder.dataflow():
            inside = list(names)
            for _ in range(self.random.randint(1, 4)):
                inside.append(self.builder.emit(self._op(inside)))
                if self.random.random() < 0.2:
                    inside.append(self.builder.emit(self._overwriting(inside)))
            if self.random.random() < 0.5:
                result = self.builder.emit_output(inside[-1])
                return result
            pair = self.builder.emit_output(relax.Tuple([inside[-1], self._one_of(inside)]))
        return self.builder.emit(relax.TupleGetItem(pair, self.random.randint(0, 1)))

    def _overwriting(self, names):
        if self.calm:
            return self._op(names)
        name = self._function([aliasing.INCREMENTED], [aliasing.DECLARED_INCREMENTED])
        return op.call_inplace_packed(name, self._one_of(names), inplace_indices=0, ty_args=TENSOR)

    def _effect(self, names, depth):
        if self.calm:
            return self._calm_effect(names)
        x, y = self._one_of(names), self._one_of(names)
        unary = self._function(
            [aliasing.INCREMENT, aliasing.KEEP, aliasing.KEEP],
            [aliasing.DECLARED_INCREMENT, aliasing.DECLARED_KEEP, aliasing.DECLARED_SEE],
        )
        chosen = [call(unary, x), call(unary, x), call(aliasing.DECLARED_ADD_TO, x, y)]
        if not self.declared:
            chosen.append(call(aliasing.CHANGE_KEPT))
        self.builder.emit(self.random.choice(chosen))
        return x

    def _calm_effect(self, names):
        x, y = self._one_of(names), self._one_of(names)
        if self.random.random() < 0.3:
            self.builder.emit(call(aliasing.DECLARED_SEE, x))
            return y
        effect = [call(aliasing.DECLARED_INCREMENT, x), call(aliasing.DECLARED_ADD_TO, x, y)]
        self.builder.emit(self.random.choice(effect))
        others = [name for name in names if not name.same_as(x)]
        if len(others) > 1:
            names[:] = others
        return self._one_of(names)

    def _function(self, undeclared, declared):
        return self.random.choice(declared if self.declared else undeclared + declared)

    def _alias(self, names, depth):
        if self.random.random() < 0.5:
            return self.builder.emit(self._one_of(names))
        pair = self.builder.emit(relax.Tuple([self._one_of(names), self._one_of(names)]))
        return self.builder.emit(relax.TupleGetItem(pair, self.random.randint(0, 1)))

    def _packed(self, names, depth):
        x = self._one_of(names)
        same = self._function([aliasing.SAME], [aliasing.DECLARED_SAME])
        double = self._function([aliasing.DOUBLE], [aliasing.DECLARED_DOUBLE])
        return self.builder.emit(
            self.random.choice(
                [
                    call(same, x, ty=TENSOR),
                    op.call_pure_packed(same, x, ty_args=TENSOR),
                    op.call_dps_packed(double, relax.Tuple([x]), TENSOR),
                    self._overwriting(names),
                ]
            )
        )

    def _constant(self, names, depth):
        value = np.array([self.random.choice([0.5, 1.0, -1.0]) for _ in range(SHAPE[0])], DTYPE)
        constant = relax.const(value, DTYPE)
        if self.random.random() < 0.5:
            return self.builder.emit(constant)
        return self.builder.emit(op.add(constant, self._one_of(names)))

    def _if(self, names, depth):
        if self.condition is None:
            return self._alias(names, depth)
        branches = []
        outer, self.in_branch = self.in_branch, True
        for _ in range(2):
            self.builder._begin_binding_block()
            inside = self._statements(list(names), self.random.randint(1, 2), depth + 1)
            result = self.builder.emit(self._one_of(inside))
            branches.append(relax.SeqExpr([self.builder._end_block()], result))
        self.in_branch = outer
        return self.builder.emit(relax.If(self.condition, *branches))

    def _calls(self, names, depth):
        callee = self.random.choice(self.callees)
        return self.builder.emit(relax.Call(callee, [self._one_of(names), self._one_of(names)]))

    def _closure(self, names, depth):
        """Emit a local function over a name of the outer one, and call it twice."""
        captured = self._one_of(names)
        param = relax.Var("a", TENSOR)
        inside = relax.BlockBuilder()
        inside._begin_binding_block()
        effect = self._function([aliasing.INCREMENT], [aliasing.DECLARED_INCREMENT])
        effect = aliasing.DECLARED_SEE if self.calm else effect
        inside.emit(call(effect, captured))
        result = inside.emit(op.add(param, captured))
        body = relax.SeqExpr([inside._end_block()], result)
        closure = self.builder.emit(relax.Function([param], body, TENSOR, is_pure=False))
        first = self.builder.emit(relax.Call(closure, [self._one_of(names)]))
        second = self.builder.emit(relax.Call(closure, [first]))
        # TVM forgets the type of what a closure returns, and then cannot pass it to a function.
        return self.builder.emit(op.add(first, second))
