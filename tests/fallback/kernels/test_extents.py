from tvm import tirx

from graphgrad.fallback.kernels.extents import rename_extent


def test_other_variables_of_another_dtype():
    n, m = tirx.Var("n", "int64"), tirx.Var("m", "int32")
    given = (n * 2 + 1) // 3
    renamed = rename_extent(given, "int32", lambda var: m)
    assert str(renamed.ty) == "int32"
    assert list(tirx.analysis.undefined_vars(renamed)) == [m]
    assert str(renamed) == "(m * 2 + 1) // 3"


def test_numbers():
    n = tirx.Var("n", "int64")
    assert int(rename_extent(7, "int32", lambda var: var)) == 7
    assert str(rename_extent(tirx.IntImm("int64", 7), "int32", lambda var: var).ty) == "int32"
    assert int(rename_extent(n, "int64", lambda var: 5)) == 5
