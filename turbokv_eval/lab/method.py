"""The interface of every method of the laboratory: fit on calibration rows, then round trips, scores and true bits.

A row is one head vector of one token. The order of the rows is the order of the tokens; methods with a window or with
groups of tokens depend on it.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
U8 = npt.NDArray[np.uint8]

FP16_BITS = 16


class Fitted(Protocol):
    """A method with its calibration done; one object serves one head. Derived classes inherit `scores`."""

    def encode_decode(self, x: F32) -> F32:
        """The rows as the cache would give them back.

        x: float32, shape (n, d), the unit of the caller. Returns the same. Raises TypeError for another dtype,
        ValueError for another shape or for a d that the method has not.
        """
        ...

    def scores(self, queries: F32, x: F32) -> F32:
        """Estimates of <query, row>: the query in full precision, the rows through the cache.

        queries: float32, shape (m, d). x: float32, shape (n, d). Returns float32, shape (m, n). Raises as above.
        """
        width = require_rows(x, "x")
        require_rows(queries, "queries", width)
        return queries @ self.encode_decode(x).T

    def bits_per_value(self, n: int, d: int) -> float:
        """Bits that the cache holds for n tokens of d values, divided by n*d: codes, norms, scales, indices, windows.

        What does not depend on the cached tokens (seeds, codebooks, calibration) is part of the model and not counted.
        Raises ValueError for a d that the method has not.
        """
        ...


class Method(Protocol):
    """A method with its options, before calibration. Deterministic: randomness comes from a seed it was made with."""

    @property
    def name(self) -> str:
        """Short and unique, with the rate: `turboquant_mse-3`."""
        ...

    def fit(self, keys: F32, queries: F32 | None = None) -> Fitted:
        """Calibrate. Methods without calibration ignore the rows.

        keys: float32, shape (n, d), n >= 1: rows like those to be cached. queries: float32, shape (m, d), those that
        will meet them; without them a method that wants them assumes white queries. Errors as encode_decode.
        """
        ...


class Uncalibrated(Fitted, Protocol):
    """A method that needs no calibration: it is its own fitted form."""

    def fit(self, keys: F32, queries: F32 | None = None) -> Fitted:
        """Checks the rows, returns itself."""
        width = require_rows(keys, "keys")
        if queries is not None:
            require_rows(queries, "queries", width)
        return self


def require_float32(x: object, what: str) -> None:
    """Raises TypeError unless x is a float32 array, of any shape. what: the name for the message."""
    if not isinstance(x, np.ndarray) or x.dtype != np.float32:
        found = x.dtype if isinstance(x, np.ndarray) else type(x).__name__
        raise TypeError(f"{what} must be a NumPy array of float32, got {found}")


def require_rows(x: object, what: str, width: int | None = None) -> int:
    """The width d of rows of shape (n, d). what: the name for the message.

    Raises TypeError unless x is a float32 array, ValueError unless it is 2-D with d = width (any d >= 1 for None).
    """
    require_float32(x, what)
    assert isinstance(x, np.ndarray)
    if x.ndim != 2 or x.shape[1] == 0 or (width is not None and x.shape[1] != width):
        raise ValueError(f"{what} must have shape (rows, {'d' if width is None else width}), got {x.shape}")
    return int(x.shape[1])


def require_calibration(keys: F32, queries: F32 | None) -> int:
    """The width d of calibration rows, of which there must be at least one. Errors as require_rows."""
    width = require_rows(keys, "keys")
    if len(keys) == 0:
        raise ValueError("keys must have at least one row to calibrate on")
    if queries is not None:
        require_rows(queries, "queries", width)
    return width


def require_multiple(d: int, block: int, what: str) -> None:
    """Raises ValueError unless d is a positive multiple of block. what: who asks, for the message."""
    if d <= 0 or d % block:
        raise ValueError(f"{what} needs rows of a multiple of {block} values, got {d}")
