"""The defects of TVM that graphgrad works around, and the private hooks of TVM that it uses.

Start with `ledger`, what is said of a defect, and any module of `defects`. ``python -m
graphgrad.tvm_fixes`` prints them as the page ``docs/tvm-defects.md``. Of this package the rest of
graphgrad imports `hooks` alone.
"""
