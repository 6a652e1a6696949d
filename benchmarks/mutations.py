"""Random changes to files: bytes, values of JSON trees, safetensors and tar headers, as a generator decides."""

from __future__ import annotations

import copy
import io
import json
import random
import struct
import tarfile
from typing import Any

DEEP = "<deep:{}>"
"""Stands for nested lists in a tree; `dump` writes them as text, since `json.dumps` cannot."""
NAMES = [
    "../../etc/passwd",
    "/etc/passwd",
    "a\0b",
    "",
    "x" * 5000,
    "\ud800",
    "C:\\x",
    "~root/x",
    "é",
    "NaN",
    "${oc.env:HOME}",
]
MODELS = ["waves/32x1@8:16", "waves/99999x64@999:9999", "waves/32x999999@4:16", "waves/0x0@0:0", "mf-w720/32x1@4:64"]
NUMBERS = [0, -1, 1, 255, 2**31, -(2**31), 2**63, 2**64 - 1, 10**40, 10**400, 1.5, 1e308, -0.0, 1e-320]
SPECIAL = [None, True, False, [], {}, [[]], {"a": {}}, float("nan"), float("inf"), -float("inf")]
DEPTHS = (20, 900, 5000, 100_000)
EXTREMES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


def mutate_bytes(data: bytes, rng: random.Random, near: range | None = None) -> bytes:
    """One to eight changes: bits flipped, bytes set, inserted, deleted, repeated, zeroed, spliced, or the end cut off.

    `near` is where half of the changes are made, such as a header.
    """
    changed = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        if not changed:
            break
        at = rng.choice(near) if near and rng.random() < 0.5 else rng.randrange(len(changed))
        at = min(at, len(changed) - 1)
        kind = rng.randrange(9)
        if kind == 0:
            changed[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        elif kind <= 2:
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 3:
            changed[at:at] = rng.randbytes(rng.randint(1, 4))
        elif kind == 4:
            del changed[at : at + rng.randint(1, 4)]
        elif kind == 5:
            changed[at:at] = changed[at : at + rng.randint(1, 16)]
        elif kind == 6:
            value = rng.choice(EXTREMES).to_bytes(4, rng.choice(("little", "big")))
            changed[at : at + 4] = value
        elif kind == 7:
            other = rng.randrange(len(changed))
            length = rng.randint(1, 64)
            changed[at : at + length] = changed[other : other + length]
        elif rng.random() < 0.3:
            del changed[at:]
        else:
            changed[at : at + 16] = bytes(16)
    return bytes(changed)


def odd_value(rng: random.Random) -> Any:
    """A value that a reader does not expect."""
    kind = rng.randrange(6)
    if kind == 0:
        return copy.deepcopy(rng.choice(SPECIAL))
    if kind == 1:
        return rng.choice(NAMES)
    if kind == 2:
        return rng.choice(MODELS)
    if kind == 3 and rng.random() < 0.3:
        return DEEP.format(rng.choice(DEPTHS))
    return rng.choice(NUMBERS) if kind < 5 else [rng.choice(NUMBERS) for _ in range(rng.randint(0, 5))]


def mutate_tree(tree: Any, rng: random.Random) -> Any:
    """One to three changes of values: another type, a missing, doubled or renamed key, two values swapped."""
    tree = copy.deepcopy(tree)
    for _ in range(rng.randint(1, 3)):
        places = list(_places(tree))
        if not places:
            return odd_value(rng)
        inner, key = rng.choice(places)
        kind = rng.randrange(8)
        if kind == 0:
            del inner[key]
        elif kind == 1 and isinstance(inner, dict):
            inner[rng.choice([*NAMES, str(key) + "s"])] = inner.pop(key)
        elif kind == 2 and isinstance(inner, list):
            inner.insert(0, copy.deepcopy(inner[key]))
        elif kind == 3:
            other, second = rng.choice(places)
            inner[key] = copy.deepcopy(other[second])
        elif kind == 4 and isinstance(inner[key], int | float):
            inner[key] = rng.choice((-inner[key], inner[key] * 1000, inner[key] + 1, str(inner[key])))
        else:
            inner[key] = odd_value(rng)
    return tree


def _places(tree: Any) -> Any:
    """Every (container, key) of a tree."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in list(items):
        yield tree, key
        yield from _places(value)


def dump(tree: Any) -> bytes:
    """JSON, with `DEEP` values written out."""
    text = json.dumps(tree, ensure_ascii=True)
    for depth in DEPTHS:
        text = text.replace(f'"{DEEP.format(depth)}"', "[" * depth + "]" * depth)
    return text.encode()


def mutate_json(tree: Any, rng: random.Random) -> bytes:
    """A JSON file with changed values, or with changed bytes."""
    if rng.random() < 0.75:
        return dump(mutate_tree(tree, rng))
    return mutate_bytes(dump(tree), rng)


def mutate_safetensors(data: bytes, rng: random.Random) -> bytes:
    """A safetensors file whose header (JSON), header length or bytes are changed."""
    length = int.from_bytes(data[:8], "little")
    kind = rng.randrange(4)
    if kind == 0:
        return mutate_bytes(data, rng, range(8 + length))
    if kind == 1:
        wrong = rng.choice((0, 1, length - 1, length + 1, len(data), 2**31, 2**32, 2**62, 2**64 - 1))
        return struct.pack("<Q", wrong) + data[8:]
    if kind == 2:  # values of tensors, which every reader must check for itself
        values = bytearray(data)
        for _ in range(rng.randint(1, 20)):
            at = rng.randrange(8 + length, len(data) - 4)
            values[at : at + 4] = rng.choice(EXTREMES).to_bytes(4, "little")
        return bytes(values)
    header = dump(mutate_tree(json.loads(data[8 : 8 + length]), rng))
    return struct.pack("<Q", len(header)) + header + data[8 + length :]


def mutate_tar(members: list[tuple[str, bytes]], rng: random.Random) -> bytes:
    """A tar file with odd members, with odd header fields under a right checksum, or with changed bytes."""
    kind = rng.randrange(3)
    if kind == 0:
        members = [
            (rng.choice(NAMES[:4] + NAMES[6:]) + rng.choice((".png", ".cls")) if rng.random() < 0.2 else name, data)
            for name, data in members
        ]
        members = [
            (name, rng.choice((b"", b"-5", b"9" * 50, b"1.5", b"x", b"\xff")) if name.endswith(".cls") else data)
            if rng.random() < 0.3
            else (name, data)
            for name, data in members
        ]
        return tar_bytes(members)
    data = tar_bytes(members)
    if kind == 1:
        return mutate_bytes(data, rng, range(512))
    changed = bytearray(data)
    starts = [at for at in range(0, len(data), 512) if data[at + 257 : at + 262] == b"ustar"]
    for _ in range(rng.randint(1, 3)):
        at = rng.choice(starts)
        field, width = rng.choice(((0, 100), (124, 12), (156, 1), (257, 8), (345, 155)))
        value = rng.choice(
            (b"\xff" * width, b"\x80" + b"\0" * (width - 2) + b"\xff", b"7" * width, rng.randbytes(width))
        )
        value = rng.choice((b"x", b"g", b"L", b"K", b"S", b"1", b"2", b"5", b"\0")) if field == 156 else value[:width]
        changed[at + field : at + field + width] = value
        changed[at + 148 : at + 156] = b" " * 8
        changed[at + 148 : at + 156] = b"%06o\0 " % sum(changed[at : at + 512])
    return bytes(changed)


def tar_bytes(members: list[tuple[str, bytes]]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return file.getvalue()
