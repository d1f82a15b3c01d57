import os

import pytest

from tests.peers import peer


@pytest.fixture
def entrants():
    peer("psutil")
    import kernel_entrants

    return kernel_entrants


def competing(entrants, case, derived=False, **options):
    settings = {"threads": 2, "scaling": False} | options
    return [e.name for e in entrants.entrants(**settings) if e.competes(case, derived)]


def test_who_competes(entrants, monkeypatch):
    from kernel_cases import Case, Convolution, Product

    monkeypatch.setattr(entrants.gg, "compile", lambda mod, target="llvm", winograd=True: None)
    product = Case(Product(2, 2, 2), "forward")
    image = Case(Convolution(2, 16, 8, 16, 3, 1, 1), "data")
    strided = Case(Convolution(2, 16, 8, 16, 3, 2, 1), "data")
    assert competing(entrants, product) == ["graphgrad", "torch"]
    assert competing(entrants, image) == ["graphgrad", "graphgrad direct", "torch", "torch NCHW"]
    assert competing(entrants, strided) == ["graphgrad", "torch", "torch NCHW"]
    assert competing(entrants, image, derived=True) == ["graphgrad", "graphgrad derived", "torch"]
    assert competing(entrants, product, scaling=True) == [
        *("graphgrad", "torch", "graphgrad, 1 thread", "torch, 1 thread")
    ]
    assert competing(entrants, product, scaling=True, threads=1) == ["graphgrad", "torch"]


def test_without_the_switch_nobody_is_direct(entrants, monkeypatch):
    monkeypatch.setattr(entrants.gg, "compile", lambda mod, target="llvm": None)
    assert entrants.DIRECT not in [e.name for e in entrants.entrants(1, False)]


def test_a_process_serves_case_after_case_and_outlives_a_failure(entrants, tmp_path):
    peer("torch")
    from kernel_cases import Case, Product
    from process import ContenderError

    (torch,) = (e for e in entrants.entrants(1, False) if e.name == entrants.REFERENCE)
    pool = entrants.Entrants([torch], "perf_counter")
    try:
        first = pool.prepared(torch, Case(Product(3, 4, 5), "forward"), tmp_path / "a.npy")
        assert len(first.run(timed=2, untimed=1)) == 2
        with pytest.raises(ContenderError, match=r"FileNotFoundError.*a\.npy"):
            pool.prepared(torch, Case(Product(3, 4, 5), "data"), tmp_path / "none" / "a.npy")
        again = pool.prepared(torch, Case(Product(3, 4, 5), "data"), tmp_path / "b.npy")
        assert again is first and (tmp_path / "b.npy").exists()
        os.kill(first.pid, 9)
        with pytest.raises(ContenderError, match="status -9"):
            pool.prepared(torch, Case(Product(3, 4, 5), "weight"), tmp_path / "c.npy")
        anew = pool.prepared(torch, Case(Product(3, 4, 5), "weight"), tmp_path / "c.npy")
        assert anew.pid != first.pid
    finally:
        pool.close()
