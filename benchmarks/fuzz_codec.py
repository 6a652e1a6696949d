"""Damaged `.finola` files: 20,000 random mutations of a sample end in a photo or in one sentence, never otherwise.

Half of them keep the old checksum, half get a new one, so that damage reaches header, entropy coder and model. Prints
JSON; exits with 1 at the first mutation that raises anything but `CorruptFileError`, or takes longer or more memory than any
photo of its size may. `python benchmarks/fuzz_codec.py [COUNT] [SEED]`.
"""

from __future__ import annotations

import json
import random
import sys
import time
import zlib

import torch

from finola.codec.photo import compress, decompress
from finola.errors import CorruptFileError

SLOWEST = 20.0  # seconds that one file may take
MOST_MEMORY = 2_000_000  # kB resident


def sample() -> bytes:
    """A made photo of 70×90 pixels."""
    y, x = torch.meshgrid(torch.arange(70), torch.arange(90), indexing="ij")
    image = torch.stack([(3 * x + y) % 256, (x * x // 40 + 2 * y) % 256, 255 - x - y]).to(torch.uint8)
    return compress(image, quality=40).data


def mutate(data: bytes, rng: random.Random) -> bytes:
    """One to eight changes: bytes set, flipped, inserted, deleted, repeated, or the end cut off."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        if not changed:
            break
        at = rng.randrange(len(changed))
        kind = rng.randrange(6)
        if kind == 0:
            changed[at] = rng.randrange(256)
        elif kind == 1:
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 2:
            changed[at:at] = rng.randbytes(rng.randint(1, 4))
        elif kind == 3:
            del changed[at : at + rng.randint(1, 4)]
        elif kind == 4:
            changed[at:at] = changed[at : at + rng.randint(1, 16)]
        else:
            del changed[at:]
    return bytes(changed)


def with_checksum(data: bytes) -> bytes:
    """The same with the last four bytes made right."""
    return data[:-4] + zlib.crc32(data[:-4]).to_bytes(4, "little")


def fuzz(count: int, seed: int) -> dict[str, float]:
    """Decode `count` mutations. An unexpected exception carries the bytes that caused it as a note."""
    rng = random.Random(seed)
    original = sample()
    decompress(original)
    found = {"mutations": count, "refused": 0, "decoded": 0, "slowest_seconds": 0.0}
    for number in range(count):
        data = mutate(original, rng)
        data = with_checksum(data) if number % 2 else data
        started = time.perf_counter()
        try:
            decompress(data)
            found["decoded"] += 1
        except CorruptFileError:
            found["refused"] += 1
        except ValueError as error:  # another model's name is a sentence of its own
            if "needs the model" not in str(error):
                error.add_note(f"mutation {number} of seed {seed}: {data.hex()}")
                raise
            found["refused"] += 1
        found["slowest_seconds"] = max(found["slowest_seconds"], time.perf_counter() - started)
    return found


def main() -> None:
    import resource  # not on Windows, where the tests use `fuzz` alone

    begin = time.perf_counter()
    found = fuzz(
        count=int(sys.argv[1]) if len(sys.argv) > 1 else 20_000, seed=int(sys.argv[2]) if len(sys.argv) > 2 else 0
    )
    found["seconds"] = time.perf_counter() - begin
    unit = 1024 if sys.platform == "darwin" else 1  # bytes on macOS, kB elsewhere
    found["peak_memory_kB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // unit
    print(json.dumps(found, indent=2))
    if found["slowest_seconds"] > SLOWEST or found["peak_memory_kB"] > MOST_MEMORY:
        sys.exit(1)


if __name__ == "__main__":
    main()
