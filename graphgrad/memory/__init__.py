"""Analysis of shared memory, and what relies on it: overwriting, checks of arguments, the plan.

Start with `alias`, the analysis; `donation` is its main client. The words are defined in
``docs/glossary.md``, the contract is ``docs/aliasing.md``.
"""
