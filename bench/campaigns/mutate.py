"""Mutations of bytes, of protocol buffers and of JSON: damage that a file may have, or be given."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any, TypeVar

import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

_T = TypeVar("_T")

INTEGERS = (0, 1, -1, 2, 3, 7, 64, 255, 1000, 2**16, 2**31 - 1, 2**31, 2**40, 2**63 - 1, -(2**63))
FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-45, 3.4e38, 1e300, float("nan"), float("inf"), -float("inf"))
TEXTS = ("", "x", "N", "/", "..", "../../etc/passwd", "\x00", "é\u202e", "a" * 5000, "nan", "[]")
VALUES: tuple[Any, ...] = (*INTEGERS, 2**70, *FLOATS, *TEXTS, None, True, [], {}, [[]], {"a": 1})

_RANGES = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}


def chosen(rng: np.random.Generator, options: list[_T] | tuple[_T, ...]) -> _T:
    """One of some options."""
    return options[int(rng.integers(len(options)))]


def mutate_bytes(rng: np.random.Generator, data: bytes, other: bytes = b"") -> bytes:
    """Bytes with a few of them changed, lost, repeated or from another file."""
    for _ in range(int(rng.integers(1, 5))):
        size = len(data)
        start, stop = sorted(map(int, rng.integers(0, size + 1, 2)))
        stop = min(stop, start + int(2 ** rng.uniform(0, 12)))
        match int(rng.integers(7)):
            case 0:
                data = data[:start]
            case 1:
                data = data[:start] + data[stop:]
            case 2:
                data = data[:stop] + data[start:stop] + data[stop:]
            case 3:
                data = data[:start] + rng.bytes(stop - start) + data[stop:]
            case 4:
                data = data[:start] + other[start:stop] + data[stop:]
            case _ if size:  # the same length, so that the structure around it is kept
                position = int(rng.integers(size))
                byte = data[position] ^ (1 << int(rng.integers(8)))
                if rng.random() < 0.3:
                    byte = chosen(rng, (0, 1, 0x7F, 0x80, 0xFF))
                data = data[:position] + bytes([byte]) + data[position + 1 :]
    return data


def mutate_message(rng: np.random.Generator, message: Message) -> None:
    """Change one field somewhere in a message: drop, repeat, swap or replace its value."""
    target = chosen(rng, list(_messages(message)))
    fields = list(target.DESCRIPTOR.fields)
    # Fields that are set are changed more often than others are set.
    if rng.random() < 0.7 and target.ListFields():
        fields = [field for field, _ in target.ListFields()]
    field = chosen(rng, fields)
    if rng.random() < 0.2:
        target.ClearField(field.name)
    elif field.is_repeated:
        _mutate_repeated(rng, target, field)
    elif field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        _mutate_inner(rng, message, getattr(target, field.name))
    else:
        setattr(target, field.name, _value(rng, field, getattr(target, field.name)))


def mutate_json(rng: np.random.Generator, document: Any) -> Any:
    """A copy of a document of JSON with one value dropped, repeated, renamed or replaced."""
    document = copy.deepcopy(document)
    places = list(_places(document))
    container, key = chosen(rng, places)
    match int(rng.integers(6)):
        case 0:
            del container[key]
        case 1 if isinstance(container, list):
            container.insert(key, copy.deepcopy(container[key]))
        case 1:
            container[chosen(rng, TEXTS)] = container.pop(key)
        case 2:
            source, other = chosen(rng, places)
            container[key] = copy.deepcopy(source[other])
        case 3 if isinstance(container[key], int):
            container[key] += chosen(rng, (-1, 1, 2, 1000))
        case 4 if isinstance(container[key], str):
            container[key] = mutate_bytes(rng, container[key].encode()).decode(errors="replace")
        case _:
            container[key] = chosen(rng, VALUES)
    return document


def json_text(rng: np.random.Generator, document: Any) -> bytes:
    """A document as bytes, now and then deeper than a reader can go, or with repeated keys."""
    text = json.dumps(document)
    match int(rng.integers(40)):
        case 0:
            return b"[" * 100_000
        case 1:
            return text.encode("utf-16")
        case 2:
            return text.replace("1", "1e999").encode()
        case 3:
            return text.replace("1", "1" * 5000).encode()
    return text.encode()


def _messages(message: Message) -> Iterator[Message]:
    yield message
    for field, value in message.ListFields():
        if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            for inner in value if field.is_repeated else [value]:
                yield from _messages(inner)


def _places(document: Any) -> Iterator[tuple[Any, Any]]:
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in items:
        yield document, key
        if isinstance(value, dict | list):
            yield from _places(value)


def _mutate_repeated(rng: np.random.Generator, target: Message, field: FieldDescriptor) -> None:
    values = getattr(target, field.name)
    if not len(values):
        if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            values.add()
        else:
            values.append(_value(rng, field, None))
        return
    position = int(rng.integers(len(values)))
    match int(rng.integers(5)):
        case 0:
            del values[position]
        case 1:
            values.extend([copy.deepcopy(values[position])] * chosen(rng, (1, 1, 1, 20)))
        case 2:
            other = int(rng.integers(len(values)))
            shuffled = list(map(copy.deepcopy, values))
            shuffled[position], shuffled[other] = shuffled[other], shuffled[position]
            del values[:]
            values.extend(shuffled)
        case _ if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            mutate_message(rng, values[position])
        case _:
            values[position] = _value(rng, field, values[position])


def _mutate_inner(rng: np.random.Generator, root: Message, inner: Message) -> None:
    """Replace a message by another one of its type from anywhere, or by an empty one."""
    kind = inner.DESCRIPTOR.full_name
    donors = [m for m in _messages(root) if m.DESCRIPTOR.full_name == kind and m is not inner]
    inner.SetInParent()
    if donors and rng.random() < 0.8:
        donor = copy.deepcopy(chosen(rng, donors))
        inner.CopyFrom(donor)


def _value(rng: np.random.Generator, field: FieldDescriptor, current: Any) -> Any:
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return chosen(rng, [value.number for value in field.enum_type.values])
    if field.cpp_type in _RANGES:
        low, high = _RANGES[field.cpp_type]
        if rng.random() < 0.3:
            small = int(rng.integers(-2, 30))
            return min(max(small, low), high)
        return min(max(chosen(rng, INTEGERS), low), high)
    if field.cpp_type in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return chosen(rng, FLOATS)
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return not current
    if field.type == FieldDescriptor.TYPE_BYTES:
        return mutate_bytes(rng, current or b"12345678")
    if current and rng.random() < 0.5:
        return mutate_bytes(rng, current.encode()).decode(errors="replace")
    return chosen(rng, TEXTS)
