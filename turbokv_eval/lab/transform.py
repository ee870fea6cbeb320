"""What may stand before a code: an invertible map of the rows, and `Transformed`, which puts the two together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from turbokv_eval.lab.method import F32, Fitted, Method, require_calibration, require_rows


class FittedTransform(Protocol):
    """An affine map of rows and the map of queries that keeps inner products up to a term that no row enters."""

    def forward(self, x: F32) -> F32:
        """Rows to the code's space. float32, shape (n, d), both ways. Errors as `Fitted.encode_decode`."""
        ...

    def inverse(self, y: F32) -> F32:
        """Undoes forward, to rounding."""
        ...

    def query(self, q: F32) -> F32:
        """Queries, such that <query(q), forward(x)> - <q, x> is the same for every x. Shapes as forward."""
        ...


class Transform(Protocol):
    """A transform with its options, before calibration."""

    @property
    def name(self) -> str:
        """Short, for the name of the whole method."""
        ...

    def fit(self, keys: F32, queries: F32 | None = None) -> FittedTransform:
        """Calibrate; arguments and errors as `Method.fit`. Transforms without calibration use only the width."""
        ...


@dataclass(frozen=True)
class Identity:
    """No transform."""

    name: str = "none"

    def fit(self, keys: F32, queries: F32 | None = None) -> FittedTransform:
        """Itself."""
        require_rows(keys, "keys")
        return self

    def forward(self, x: F32) -> F32:
        """x."""
        require_rows(x, "x")
        return x

    def inverse(self, y: F32) -> F32:
        """y."""
        require_rows(y, "y")
        return y

    def query(self, q: F32) -> F32:
        """q."""
        require_rows(q, "q")
        return q


@dataclass(frozen=True)
class Linear:
    """A fitted affine map as dense matrices: forward(x) = (x - centre) map^T, query(q) = q dual^T.

    centre: float32 (d,). map, inverse_map, dual: float32 (d, d), with inverse_map = map^-1 and dual = map^-T.
    """

    centre: F32
    map: F32
    inverse_map: F32

    @property
    def dual(self) -> F32:
        """map^-T, float32 (d, d)."""
        return self.inverse_map.T

    def forward(self, x: F32) -> F32:
        """(x - centre) map^T."""
        require_rows(x, "x", len(self.centre))
        return np.asarray((x - self.centre) @ self.map.T, dtype=np.float32)

    def inverse(self, y: F32) -> F32:
        """y map^-T + centre."""
        require_rows(y, "y", len(self.centre))
        return np.asarray(y @ self.inverse_map.T + self.centre, dtype=np.float32)

    def query(self, q: F32) -> F32:
        """q map^-1: <query(q), forward(x)> = <q, x> - <q, centre>."""
        require_rows(q, "q", len(self.centre))
        return np.asarray(q @ self.inverse_map, dtype=np.float32)


@dataclass(frozen=True)
class _FittedChain:
    parts: tuple[FittedTransform, ...]

    def forward(self, x: F32) -> F32:
        for part in self.parts:
            x = part.forward(x)
        return x

    def inverse(self, y: F32) -> F32:
        for part in reversed(self.parts):
            y = part.inverse(y)
        return y

    def query(self, q: F32) -> F32:
        for part in self.parts:
            q = part.query(q)
        return q


@dataclass(frozen=True)
class Chain:
    """Transforms one after the other; each is fitted on what the ones before make of the calibration rows."""

    parts: tuple[Transform, ...]

    @property
    def name(self) -> str:
        """The parts' names joined by +."""
        return "+".join(part.name for part in self.parts)

    def fit(self, keys: F32, queries: F32 | None = None) -> FittedTransform:
        """Fit in order. Arguments and errors as `Method.fit`."""
        fitted: list[FittedTransform] = []
        for part in self.parts:
            fitted.append(part.fit(keys, queries))
            keys = fitted[-1].forward(keys)
            queries = None if queries is None else fitted[-1].query(queries)
        return _FittedChain(tuple(fitted))


@dataclass(frozen=True)
class _FittedTransformed(Fitted):
    transform: FittedTransform
    inner: Fitted

    def encode_decode(self, x: F32) -> F32:
        return self.transform.inverse(self.inner.encode_decode(self.transform.forward(x)))

    def bits_per_value(self, n: int, d: int) -> float:
        return self.inner.bits_per_value(n, d)


@dataclass(frozen=True)
class Transformed:
    """A method behind a transform: inverse(round trip(forward(x))).

    The score of the decoded row, <q, inverse(y)>, is the score in the code's space plus <q, centre>, so the default
    `scores` is exact for every transform, also for one that depends on positions.
    """

    transform: Transform
    inner: Method

    @property
    def name(self) -> str:
        """`transform/method`."""
        return f"{self.transform.name}/{self.inner.name}"

    def fit(self, keys: F32, queries: F32 | None = None) -> Fitted:
        """Fits the transform, then the method on the transformed rows and queries. Errors as `Method.fit`."""
        require_calibration(keys, queries)
        transform = self.transform.fit(keys, queries)
        mapped = None if queries is None else transform.query(queries)
        return _FittedTransformed(transform, self.inner.fit(transform.forward(keys), mapped))
