"""Pipelines run their passes in order, and refuse every other order."""

from dataclasses import dataclass

import pytest
import tvm
from tvm import relax, te

from graphgrad.ir.passes import (
    Pass,
    PassOrderError,
    Phase,
    Pipeline,
    When,
    compiler_pass,
    declaration,
)

NOTES = []


@dataclass
class Context:
    """What the passes below may ask for."""

    word: str = "said"
    is_on: bool = True

    @property
    def doubled(self):
        return self.word * 2


def noting(name, *phases, **place):
    """Return a pass of some name that notes that it has run."""

    def run(mod):
        NOTES.append(name)
        return mod

    run.__name__ = name
    return compiler_pass(*(phases or (Phase.GRAPH,)), **place)(run)


def built(*passes, target="llvm", **options):
    return Pipeline(passes, target, Context, **options)


def names(pipeline):
    return [step.declared.name for step in pipeline.steps]


def empty():
    return tvm.IRModule({})


def kernel_of():
    x = te.placeholder((4,), name="x")
    return te.create_prim_func([x, te.compute(x.shape, lambda i: x[i] + 1.0)])


FIRST, SECOND = noting("first"), noting("second", requires={"first": "it says so"})
LEGALIZE = noting("legalize", to=Phase.KERNELS)
ON_KERNELS = noting("on_kernels", Phase.KERNELS)


def test_a_pass_stays_a_function():
    @compiler_pass(Phase.GRAPH)
    def change(mod, word="by itself"):
        """The word."""
        return word

    assert change(empty()) == "by itself"
    assert declaration(change).name == "change"
    assert declaration(change).summary == "The word."


def test_passes_run_in_order():
    NOTES.clear()
    built(FIRST, SECOND, LEGALIZE, ON_KERNELS).run(empty(), Context())
    assert NOTES == ["first", "second", "legalize", "on_kernels"]


REFUSED = {
    "a phase gone by": ([LEGALIZE, FIRST], r"first \(2\) .* GRAPH, but legalize \(1\) .* KERNELS"),
    "a phase to come": ([ON_KERNELS], r"on_kernels \(1\) .* KERNELS, but the beginning"),
    "a phase entered twice": ([LEGALIZE, noting("again", to=Phase.KERNELS)], r"again .* legalize"),
    "a way back": (
        [LEGALIZE, noting("back", Phase.KERNELS, to=Phase.GRAPH)],
        "back .* from KERNELS to GRAPH",
    ),
    "what it requires comes later": ([SECOND, FIRST], r"second \(1\) requires first .*it says so"),
    "what it requires may not run": (
        [When("is_on", [FIRST]), SECOND],
        "second .* requires first",
    ),
    "it must come after": ([noting("late", after={"first": "so"}), FIRST], r"late .* after first"),
    "it must come before": (
        [FIRST, noting("early", before={"first": "so"})],
        r"early \(2\) must come before first \(1\): so",
    ),
    "no such pass": ([noting("odd", after={"frist": "a slip"})], "odd .* 'frist', .* no such pass"),
    "twice": ([FIRST, FIRST], r"first \(2\) is not repeatable, and is first \(1\)"),
    "no pass": ([len], "len is no pass"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_orders_are_refused(name):
    passes, says = REFUSED[name]
    with pytest.raises(PassOrderError, match=says):
        built(*passes)


def test_what_is_not_there_is_no_matter_of_order():
    gpu = noting("gpu", targets=("cuda",))
    assert names(built(gpu, noting("late", after={"gpu": "so"}))) == ["late"]
    with pytest.raises(PassOrderError, match=r"late .* requires gpu"):
        built(gpu, noting("late", requires={"gpu": "so"}))


def test_repeatable():
    again = noting("again", repeatable=True)
    assert names(built(again, FIRST, again)) == ["again", "first", "again"]


# --- what passes ask for ---


@compiler_pass(Phase.GRAPH)
def use(mod, word, doubled, other="default"):
    NOTES.append((word, doubled, other))


@compiler_pass(Phase.GRAPH, provides="found")
def find(mod):
    return mod, 3


@compiler_pass(Phase.GRAPH)
def use_found(mod, found):
    NOTES.append(found)


def test_a_pass_is_given_what_its_parameters_name():
    NOTES.clear()
    built(use).run(empty(), Context("so"))
    assert NOTES == [("so", "soso", "default")]


def test_a_pass_is_given_what_another_one_has_found():
    NOTES.clear()
    built(find, use_found).run(empty(), Context())
    assert NOTES == [3]


def test_what_nobody_provides_is_refused():
    with pytest.raises(PassOrderError, match=r"use_found \(1\) .* 'found', and there is none"):
        built(use_found)
    with pytest.raises(
        PassOrderError, match=r"use_found \(1\) .* 'found', and find \(2\) is later"
    ):
        built(use_found, find)
    with pytest.raises(PassOrderError, match=r"first .* 'unheard', and there is none"):
        built(When("unheard", [FIRST]))


@pytest.mark.parametrize("is_on", [False, True])
def test_conditions(is_on):
    NOTES.clear()
    built(When("is_on", [FIRST]), noting("always")).run(empty(), Context(is_on=is_on))
    assert [*(["first"] if is_on else []), "always"] == NOTES


def test_conditions_that_a_pass_finds():
    NOTES.clear()
    built(find, When("found", [FIRST])).run(empty(), Context())
    assert NOTES == ["first"]


# --- kernels, and TVM ---


def on_kernels(name):
    @compiler_pass(Phase.GRAPH, over="kernel")
    def run(kernel, kernel_name):
        NOTES.append((name, kernel_name))
        return kernel.with_attr(name, len(NOTES))

    declared = declaration(run)
    run.__name__ = name
    assert declared.name == name
    return run


def test_a_kernel_is_finished_before_the_next_one():
    NOTES.clear()
    mod = tvm.IRModule({name: kernel_of() for name in ("f", "g")})
    after = built(on_kernels("one"), on_kernels("two"), FIRST).run(mod, Context())
    order = [note for note in NOTES if note != "first"]
    assert [name for name, _ in order] == ["one", "two"] * 2
    assert NOTES[-1] == "first"
    assert {int(f.attrs["two"]) - int(f.attrs["one"]) for f in after.functions.values()} == {1}
    assert all("one" not in (f.attrs or {}) for f in mod.functions.values())


def test_passes_over_kernels_run_on_one():
    _, facts = built(noting("look", over="kernel"), find).run_on_kernel(kernel_of())
    assert facts == {"found": 3}


def test_instruments_see_passes_and_contexts_disable_them():
    seen = []

    @tvm.ir.instrument.pass_instrument
    class Names:
        def run_before_pass(self, mod, info):
            seen.append(str(info.name))

    lift = Pass(relax.transform.LambdaLift, (Phase.GRAPH,), over="stock")
    with tvm.transform.PassContext(instruments=[Names()], disabled_pass=["graphgrad.second"]):
        built(FIRST, SECOND, lift).run(empty(), Context())
    own = [name for name in seen if name != "sequential"]
    assert own == ["graphgrad.first", "LambdaLift"]
