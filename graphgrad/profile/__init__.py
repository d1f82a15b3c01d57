"""Where time and memory of a step go.

Start with `profile`; `origins` and `terms` say which nodes a kernel computes, `text` prints.
"""
