"""Who shares memory with whom, and what may therefore be overwritten.

Start with `alias`, the analysis; `donation` is its main client. The words are defined in
``docs/glossary.md``, the contract is ``docs/aliasing.md``.
"""
