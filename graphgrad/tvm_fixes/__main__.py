"""Print the page of TVM's defects: ``python -m graphgrad.tvm_fixes > docs/tvm-defects.md``."""

from .page import page

if __name__ == "__main__":
    print(page(), end="")
