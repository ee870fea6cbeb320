"""The turbo types of docs/FORMAT.md section 1. Everything else about a type follows from the two lists here."""

from __future__ import annotations

from dataclasses import dataclass

FORMAT_VERSION = 1
FIRST_ID = 64
BLOCKS = (128, 64, 80, 96, 112)
"""Values a block, in the order in which the ids were given out."""
BITS = (2, 3, 4)
_UNSUFFIXED_BLOCK = 128


@dataclass(frozen=True)
class TurboType:
    """One type: ggml type id, bits a value, and n, the values a block."""

    id: int
    bits: int
    n: int

    @property
    def name(self) -> str:
        """`turbo3`, or `turbo3_64` where the block is not 128."""
        return f"turbo{self.bits}" if self.n == _UNSUFFIXED_BLOCK else f"turbo{self.bits}_{self.n}"

    @property
    def block_bytes(self) -> int:
        """Bytes a block: the scale and the codes."""
        return 2 + self.n * self.bits // 8

    @property
    def bits_per_value(self) -> float:
        """Stored bits a value, the scale included."""
        return 8 * self.block_bytes / self.n


TYPES = tuple(
    TurboType(FIRST_ID + len(BITS) * i + j, bits, n) for i, n in enumerate(BLOCKS) for j, bits in enumerate(BITS)
)


def by_name(name: str) -> TurboType:
    """The type called `name`. Raises ValueError, naming the types there are."""
    for turbo_type in TYPES:
        if turbo_type.name == name:
            return turbo_type
    raise ValueError(f"unknown turbo type {name!r}; known: {', '.join(t.name for t in TYPES)}")


def by_shape(bits: int, n: int) -> TurboType:
    """The type with these bits and block. Raises ValueError where there is none."""
    for turbo_type in TYPES:
        if (turbo_type.bits, turbo_type.n) == (bits, n):
            return turbo_type
    raise ValueError(f"no turbo type has {bits} bits and blocks of {n}; bits: {BITS}, blocks: {BLOCKS}")


def block_for(d: int) -> int:
    """Values a block for a head dimension d: the largest block that divides it, but 64 for 576 (FORMAT.md section 1).

    Raises ValueError where none does.
    """
    if d == 576:
        return 64
    if d > 0:
        for n in sorted(BLOCKS, reverse=True):
            if d % n == 0:
                return n
    raise ValueError(f"no turbo type for head dimension {d}: none of the blocks {sorted(BLOCKS)} divides it")
