"""Layout: the order of tensors' axes in memory, chosen for a function before it is differentiated.

Start with `channels_last`, the pass; `rule` defines layout rules, which carry a layout through an
op, and `choice` decides by target whether the pass runs.
"""
