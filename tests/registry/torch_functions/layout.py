"""Arguments in the forms that torch takes."""


def pair(value):
    return (value, value) if isinstance(value, int) else tuple(value)


def to_layout(x, source, target):
    return x.permute([source.index(axis) for axis in target])
