"""Sizes in bytes as people write and read them."""

import re

from turbokv_eval.errors import BadInput

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

# Memory is bought in powers of two: `16G` is 16 GiB here, as it is in llama.cpp; only `GB` is 10^9.
_UNITS = {
    "": 1,
    "B": 1,
    "K": KIB,
    "KIB": KIB,
    "KB": 10**3,
    "M": MIB,
    "MIB": MIB,
    "MB": 10**6,
    "G": GIB,
    "GIB": GIB,
    "GB": 10**9,
    "T": 1 << 40,
    "TIB": 1 << 40,
    "TB": 10**12,
}


def parse_size(text: str) -> int:
    """Bytes of `16GiB`, `16G`, `512 MiB`, `8GB` or a plain number. Raises BadInput."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([A-Za-z]*)\s*", text)
    factor = _UNITS.get(match[2].upper()) if match else None
    if match is None or factor is None:
        raise BadInput(f"{text!r} is not a size: write it like 16GiB, 512MiB or 8GB")
    return int(float(match[1]) * factor)


def format_size(size: int) -> str:
    """Bytes in the largest binary unit that leaves a number of 1 or more, three or four digits."""
    for factor, unit in ((1 << 40, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= factor:
            return f"{size / factor:.2f} {unit}" if size < 100 * factor else f"{size / factor:.0f} {unit}"
    return f"{size} B"
