"""Programs from the cache: the same bits, the same errors, and a compilation where it fails."""

import os
import threading
import warnings

import numpy as np
import pytest
import tvm
from tvm import relax, te
from tvm.support import cc

import graphgrad as gg
from graphgrad.ir.arrays import to_tensor
from graphgrad.lower import pipeline
from graphgrad.lower.codegen import cache, library
from graphgrad.lower.codegen.cache import executable, key, store
from graphgrad.lower.codegen.cache.executable import KeptExecutable, LibraryExecutable
from tests.forks import CAN_FORK
from tests.lower.programs import module, random_tensors, tensor_type
from tests.train.nets import perceptron

op = relax.op

SHAPES = [(9, 33), (33, 17)]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Turn the cache on, with a folder of its own."""
    monkeypatch.setattr(key, "sources_changed", lambda: False)
    monkeypatch.setattr(store, "_warned", set())
    monkeypatch.setenv("GRAPHGRAD_CACHE", "1")
    monkeypatch.setenv("GRAPHGRAD_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def program(scale=2.0):
    def body(builder, x, weight):
        product = builder.emit(op.matmul(x, weight))
        return op.multiply(op.nn.softmax(product), relax.const(np.float32(scale)))

    return module(body, *[tensor_type(*shape) for shape in SHAPES])


def result(compiled):
    return relax.VirtualMachine(compiled, tvm.cpu())["main"](*random_tensors(*SHAPES)).numpy()


def entries(folder):
    return sorted(folder.iterdir()) if folder.exists() else []


def test_the_second_compilation_reads_what_the_first_has_kept(folder, monkeypatch):
    first = gg.compile(program())
    assert isinstance(first, KeptExecutable)
    assert not entries(folder)  # nothing is made before it is used
    expected = result(first)
    assert len(entries(folder)) == 1
    monkeypatch.setattr(pipeline, "lower", None)
    second = gg.compile(program())
    assert isinstance(second, LibraryExecutable)
    np.testing.assert_array_equal(result(second), expected)
    assert "main" in second.as_text()
    assert "main" in second.stats()


def test_bits_are_those_of_a_compilation_without_cache(monkeypatch):
    kept = [result(gg.compile(program())) for _ in range(2)]
    monkeypatch.setenv("GRAPHGRAD_CACHE", "0")
    for each in kept:
        np.testing.assert_array_equal(each, result(gg.compile(program())))


def test_constants_belong_to_the_entry(folder):
    twice, thrice = (result(gg.compile(program(scale))) for scale in (2.0, 3.0))
    assert len(entries(folder)) == 2
    np.testing.assert_array_equal(result(gg.compile(program(2.0))), twice)
    np.testing.assert_array_equal(result(gg.compile(program(3.0))), thrice)
    assert not np.array_equal(twice, thrice)


def test_a_module_that_is_changed_after_compilation(folder):
    mod = program()
    compiled = gg.compile(mod)
    expected = result(gg.compile(program()))
    mod["main"] = program(3.0)["main"]
    np.testing.assert_array_equal(result(compiled), expected)
    np.testing.assert_array_equal(result(gg.compile(program())), expected)
    assert not np.array_equal(result(gg.compile(mod)), expected)


def test_a_damaged_entry_is_compiled_again(folder):
    expected = result(gg.compile(program()))
    (path,) = entries(folder)
    path.write_bytes(path.read_bytes()[:-100])
    again = gg.compile(program())
    assert isinstance(again, KeptExecutable)
    np.testing.assert_array_equal(result(again), expected)
    assert isinstance(gg.compile(program()), LibraryExecutable)


def test_an_entry_that_does_not_load_is_compiled_again(folder):
    expected = result(gg.compile(program()))
    name = entries(folder)[0].stem
    kept = store.chosen_store()
    kept.write(name, executable._entry(b"no library", None))
    again = gg.compile(program())
    assert isinstance(again, KeptExecutable)
    np.testing.assert_array_equal(result(again), expected)


def test_programs_of_one_entry_live_and_die_apart():
    """Each is loaded from a file of its own, so that none depends on another's being there."""
    result(gg.compile(program()))
    first, second = (relax.VirtualMachine(gg.compile(program()), tvm.cpu()) for _ in range(2))
    tensors = random_tensors(*SHAPES)
    expected = first["main"](*tensors).numpy()
    del first
    np.testing.assert_array_equal(second["main"](*tensors).numpy(), expected)


def test_kernels_that_call_functions_by_name_from_two_copies():
    """They look the functions up in the module that they were loaded with."""
    mod = module(lambda b, x: op.sort(x, 1), tensor_type(4, 9))
    (x,) = random_tensors((4, 9))
    relax.VirtualMachine(gg.compile(mod), tvm.cpu())
    first, second = (relax.VirtualMachine(gg.compile(mod), tvm.cpu()) for _ in range(2))
    del second
    np.testing.assert_array_equal(first["main"](x).numpy(), np.sort(x.numpy(), 1))


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_exports(tmp_path, warm):
    if warm:
        result(gg.compile(program()))
    compiled = gg.compile(program())
    assert isinstance(compiled, LibraryExecutable) == warm
    for name, options in {"plain.so": {}, "other.so": {"options": ["-O1"]}}.items():
        compiled.export_library(tmp_path / name, **options)
        loaded = tvm.runtime.load_module(str(tmp_path / name))
        np.testing.assert_array_equal(result(loaded), result(compiled))


def test_what_was_loaded_is_exported_in_other_forms_too(tmp_path):
    compiled = gg.compile(program())
    expected = result(compiled)
    compiled.export_library(tmp_path / "other.so", options=["-O1"])
    loaded = tvm.runtime.load_module(str(tmp_path / "other.so"))
    np.testing.assert_array_equal(result(loaded), expected)
    np.testing.assert_array_equal(result(compiled), expected)


def test_an_export_makes_machine_code_once(tmp_path, monkeypatch):
    calls = []

    def counted(made):
        calls.append(made)
        return linked(made)

    linked = executable.linked_library
    monkeypatch.setattr(executable, "linked_library", counted)
    compiled = gg.compile(program())
    compiled.export_library(tmp_path / "before.so")
    result(compiled)
    compiled.export_library(tmp_path / "after.so")
    gg.compile(program()).export_library(tmp_path / "again.so")
    assert len(calls) == 1


REPLACED = """
import os, sys
import tvm
from tvm import relax
from tests.lower.codegen.cache.test_executable import key, program, result
import graphgrad as gg
key.sources_changed = lambda: False
path = sys.argv[1]
for scale in (2.0, 3.0):
    if sys.argv[2] == "warm":
        result(gg.compile(program(scale)))
first, second = gg.compile(program(2.0)), gg.compile(program(3.0))
first.export_library(path)
loaded = tvm.runtime.load_module(path)
before = result(loaded)
second.export_library(path)
assert (result(loaded) == before).all()
assert (result(gg.compile(program(2.0))) == before).all()
print(os.listdir(os.path.dirname(path)))
"""


@pytest.mark.parametrize("warm", ["cold", "warm"])
def test_an_export_leaves_a_library_alone_that_is_in_use(tmp_path, warm, python):
    """In a process of its own, which ends if it does not."""
    (tmp_path / "exports").mkdir()
    done = python.run(REPLACED, tmp_path / "exports" / "model.so", warm)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['model.so']"


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
def test_who_may_read_an_export_is_up_to_the_umask(tmp_path):
    compiled = gg.compile(program())
    before = os.umask(0o027)
    try:
        compiled.export_library(tmp_path / "model.so")
    finally:
        os.umask(before)
    assert (tmp_path / "model.so").stat().st_mode & 0o777 == 0o640


def test_an_export_that_fails_leaves_nothing(tmp_path, monkeypatch):
    (tmp_path / "exports").mkdir()
    (tmp_path / "exports" / "model.so").write_bytes(b"before")
    compiled = gg.compile(program())
    result(compiled)
    monkeypatch.setattr(os, "replace", no_space)
    with pytest.raises(OSError, match="no space left"):
        compiled.export_library(tmp_path / "exports" / "model.so")
    (left,) = (tmp_path / "exports").iterdir()
    assert left.read_bytes() == b"before"


@pytest.mark.skipif(os.name == "nt", reason="devices of POSIX systems are files")
def test_an_export_to_a_device(tmp_path):
    """It takes what is written, and stays a device."""
    os.mkfifo(tmp_path / "model.so")
    read = []
    reader = threading.Thread(
        target=lambda: read.append((tmp_path / "model.so").read_bytes()), daemon=True
    )
    reader.start()
    compiled = gg.compile(program())
    compiled.export_library(tmp_path / "model.so")
    reader.join(60)
    assert read == [compiled._kept()]
    assert (tmp_path / "model.so").is_fifo()


def no_space(*_, **__):
    raise OSError("no space left")


def test_without_space_for_temporary_files_entries_are_made_again(monkeypatch):
    expected = result(gg.compile(program()))
    with monkeypatch.context() as full:
        full.setattr(library.tempfile, "TemporaryDirectory", no_space)
        again = gg.compile(program())
    assert isinstance(again, KeptExecutable)
    np.testing.assert_array_equal(result(again), expected)


@pytest.mark.parametrize("loads", [no_space, lambda library: None], ids=["full", "refused"])
def test_a_library_that_does_not_load_is_made_in_memory(monkeypatch, loads):
    expected = result(gg.compile(program()))
    compiled = gg.compile(program(3.0))
    compiled._kept()
    if loads is no_space:
        monkeypatch.setattr(library.tempfile, "TemporaryDirectory", no_space)
    else:
        monkeypatch.setattr(executable, "loaded_library", loads)
    with pytest.warns(UserWarning, match="has linked does not load") as said:
        first, second = result(compiled), result(compiled)
    assert len(said) == 1
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(first, expected * 1.5, rtol=1e-6)


# --- what is not kept ---


def test_a_program_without_kernels(folder):
    compiled = gg.compile(module(lambda b, x: x, tensor_type(4)))
    (x,) = random_tensors((4,))
    machine = relax.VirtualMachine(compiled, tvm.cpu())
    np.testing.assert_array_equal(machine["main"](x).numpy(), x.numpy())
    assert not entries(folder)


def test_a_program_of_packed_functions(folder):
    name = "tests.cache.twice"
    tvm.register_global_func(name, lambda x: to_tensor(2 * x.numpy()), override=True)
    mod = module(
        lambda b, x: op.call_pure_packed(name, x, ty_args=[tensor_type(4)]), tensor_type(4)
    )
    (x,) = random_tensors((4,))
    machine = relax.VirtualMachine(gg.compile(mod), tvm.cpu())
    np.testing.assert_array_equal(machine["main"](x).numpy(), 2 * x.numpy())
    assert not entries(folder)


def test_kernels_without_a_program_of_the_machine(folder):
    a = te.placeholder((4,), "float32", name="a")
    twice = te.create_prim_func([a, te.compute((4,), lambda i: a[i] * 2.0, name="b")])
    compiled = gg.compile(tvm.IRModule({"twice": twice.with_attr("global_symbol", "twice")}))
    x, y = random_tensors((4,), (4,))
    compiled["twice"](x, y)
    np.testing.assert_array_equal(y.numpy(), 2 * x.numpy())
    assert not entries(folder)


# --- compilers that are not there ---


def test_without_a_compiler_programs_run_and_it_is_said_once(folder, monkeypatch):
    expected = result(gg.compile(program()))
    for path in entries(folder):
        path.unlink()
    monkeypatch.setattr(cc, "get_cc", lambda: None)
    with pytest.warns(UserWarning, match="there is no C compiler.*CXX") as said:
        np.testing.assert_array_equal(result(gg.compile(program())), expected)
        np.testing.assert_array_equal(result(gg.compile(program())), expected)
    assert len(said) == 1
    assert not entries(folder)


def test_without_a_compiler_entries_of_another_time_serve(monkeypatch):
    expected = result(gg.compile(program()))
    monkeypatch.setattr(cc, "get_cc", lambda: None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(result(gg.compile(program())), expected)


def test_a_compiler_that_fails(folder, monkeypatch):
    monkeypatch.setattr(cc, "get_cc", lambda: "false")
    with pytest.warns(UserWarning, match="C compiler false cannot link"):
        assert np.isfinite(result(gg.compile(program()))).all()
    assert not entries(folder)


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GRAPHGRAD_CACHE_DIR", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="cannot be kept in"):
        assert np.isfinite(result(gg.compile(program()))).all()


def test_errors_of_lowering_pass_through():
    mod = program()
    with pytest.raises(gg.errors.TargetError):
        gg.compile(mod, {"kind": "c"})


def test_the_cache_is_for_processors_alone():
    cuda = tvm.target.Target({"kind": "cuda", "arch": "sm_90"})
    made = object(), None
    assert cache.compiled_once(program(), cuda, {}, lambda mod: made) is made


# --- training steps ---


def losses(model, count=3):
    step = gg.train_step(model, "mse", gg.optim.SGD(0.1, momentum=0.9))
    generator = np.random.default_rng(0)
    x = generator.standard_normal((8, 4), "float32")
    targets = generator.standard_normal((8, 3), "float32")
    return [float(step(x, targets)) for _ in range(count)]


def test_a_step_from_the_cache_trains_alike(folder, monkeypatch):
    first = losses(perceptron())
    made = entries(folder)
    assert made
    assert losses(perceptron()) == first
    assert entries(folder) == made
    monkeypatch.setenv("GRAPHGRAD_CACHE", "0")
    assert losses(perceptron()) == first


SCRIPT = """
import os, sys
import graphgrad as gg
from graphgrad.lower.codegen.cache import key
key.sources_changed = lambda: False
from tests.lower.codegen.cache.test_executable import program, result
other = os.fork()
print(result(gg.compile(program())).tobytes().hex(), flush=True)
if other:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]))
"""


@pytest.mark.skipif(not CAN_FORK, reason="the processes are forks")
def test_processes_at_once_share_a_folder(folder, python):
    """All start with an empty folder, write the same entry, and compute the same."""
    done = python.run(SCRIPT, environment={**os.environ, "TVM_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    printed = done.stdout.split()
    assert len(printed) == 2 and len(set(printed)) == 1
    assert len(entries(folder)) == 1
