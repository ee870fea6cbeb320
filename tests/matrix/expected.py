"""What must hold before anything is run: whether a cell works, and the bits of a stored value."""

from dataclasses import dataclass

from zoo.catalogue import Entry

FAMILY_BITS = {"turbo2": 2, "turbo3": 3, "turbo4": 4}
SIDES = ("K+V", "K", "V")

# head dimension: values a block. A block has one fp16 scale.
BLOCKS = {
    64: 64,
    80: 80,
    96: 96,
    112: 112,
    128: 128,
    160: 80,
    192: 96,
    256: 128,
    320: 80,
    512: 128,
    576: 64,
}


@dataclass(frozen=True)
class Cell:
    """One column of the matrix for one model. sides: of the family; the other side is f16."""

    family: str
    sides: str
    flash_attn: bool

    @property
    def label(self) -> str:
        return f"{self.family} {self.sides}, flash attention {'on' if self.flash_attn else 'off'}"


ALL_CELLS = tuple(Cell(f, s, fa) for f in FAMILY_BITS for s in SIDES for fa in (True, False))


def bits_per_value(family: str, head_dim: int) -> float:
    """Bits a value of a family's block for heads of `head_dim` values. Raises KeyError where there is no block."""
    return FAMILY_BITS[family] + 16 / BLOCKS[head_dim]


def works(entry: Entry, cell: Cell) -> bool:
    """Whether the cell must run; else it must be refused."""
    return (cell.sides, cell.flash_attn) in entry.runs
