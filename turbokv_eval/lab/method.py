"""What every quantiser of the laboratory is."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]


class Fitted(Protocol):
    """A method with its constants: means, scales, permutations."""

    def encode_decode(self, x: F32) -> F32:
        """x: f32 [n, d]. What is left of it after storage, f32 [n, d]."""

    def scores(self, queries: F32, x: F32) -> F32:
        """queries: f32 [m, d]; x: f32 [n, d]. The method's estimate of queries @ x.T, f32 [m, n]."""

    def bits_per_value(self, n: int, d: int) -> float:
        """Of n vectors of d values, all side information counted."""


class Method(Protocol):
    """A quantiser that may be fitted to a sample."""

    name: str

    def fit(self, keys: F32, queries: F32 | None) -> Fitted:
        """keys: f32 [n, d], the calibration sample; queries: f32 [m, d] that will ask for them, or None."""


METHODS: dict[str, Method] = {}
