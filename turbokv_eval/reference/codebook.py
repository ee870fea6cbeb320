"""Reads codebook.json, which `codebook_gen` writes. The binary32 values in it are part of the format."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Codebook:
    """Positive half of a codebook, float32: centroids of shape (2^(bits-1),), boundaries of shape (2^(bits-1) - 1,)."""

    centroids: npt.NDArray[np.float32]
    boundaries: npt.NDArray[np.float32]
    nmse: float

    @property
    def levels(self) -> npt.NDArray[np.float32]:
        """All levels, indexed by code, ascending. Shape (2^bits,), float32."""
        return np.concatenate([-self.centroids[::-1], self.centroids])


@cache
def load(bits: int, n: int) -> Codebook:
    """The codebook of (bits, n). Raises ValueError where the file has none."""
    text = resources.files(__package__).joinpath("codebook.json").read_text(encoding="utf-8")
    for entry in json.loads(text)["codebooks"]:
        if (entry["bits"], entry["n"]) == (bits, n):
            book = Codebook(
                np.array(entry["centroids32"], dtype=np.float32),
                np.array(entry["boundaries32"], dtype=np.float32),
                float(entry["nmse"]),
            )
            for shared in (book.centroids, book.boundaries):
                shared.setflags(write=False)
            return book
    raise ValueError(f"no codebook for {bits} bits and blocks of {n}")
