"""The defects of TVM that graphgrad works around, and the private hooks of TVM that it uses.

``python -m graphgrad.tvm_fixes`` prints them as the page ``docs/tvm-defects.md``. Nothing else in
graphgrad imports this package.
"""
