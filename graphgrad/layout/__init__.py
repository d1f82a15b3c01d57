"""Layout: which axis is the innermost one, chosen on a function before it is differentiated.

Start with `channels_last`, the pass; `rule` says what a layout rule is, and `choice` decides by
target.
"""
