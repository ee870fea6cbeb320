"""Trellis-coded quantisation on the bit-shift trellis of QTIP (Tseng et al. 2024, arXiv:2406.11235), by Viterbi.

A row is one walk: its L-bit state takes `bits` new bits a value, s' = ((s << bits) | new) mod 2^L, and the value is
code[s]. Where the walk ends in the bits it began with (tail-biting), a row costs exactly bits*d bits.

The codebook is computed, not stored: code[s] is the quantile of N(0, 1) number (a s + (a - 1)/2) mod 2^L, a linear
congruential shuffle, so the states that one step can reach are spread over the line. It is antisymmetric
under the complement of s. The multipliers are the best of some 1500 odd numbers on Gaussian rows of 128 values.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
from scipy import special

from turbokv_eval.lab.method import F32, FP16_BITS, Uncalibrated, require_float32, require_rows
from turbokv_eval.lab.norms import store
from turbokv_eval.lab.rotations import HAAR
from turbokv_eval.lab.scalar import least_squares, unit_rows
from turbokv_eval.lab.transform import Transform

States = npt.NDArray[np.intp]

MULTIPLIERS = {(8, 2): 71, (8, 3): 159, (12, 2): 3037, (12, 3): 1545}
"""a by (L, bits)."""
ROWS_AT_ONCE = 64
"""A block of costs, 2^L times this in float32, should stay in the processor's second-level cache."""


@cache
def codebook(state_bits: int, bits: int) -> F32:
    """code: float32, shape (2^state_bits,), unit variance, read-only. ValueError for a pair without multiplier."""
    if (state_bits, bits) not in MULTIPLIERS:
        known = ", ".join(f"{2**s} states at {b} bits" for s, b in MULTIPLIERS)
        raise ValueError(f"no trellis of {2**state_bits} states at {bits} bits; there are {known}")
    count, a = 1 << state_bits, MULTIPLIERS[state_bits, bits]
    quantiles = special.ndtri((np.arange(count) + 0.5) / count)
    code = (quantiles / quantiles.std())[(np.arange(count) * a + (a - 1) // 2) % count].astype(np.float32)
    code.setflags(write=False)
    return np.asarray(code)


def viterbi(u: F32, code: F32, bits: int, overlap: States | None = None) -> States:
    """The walk of least squared error for each row: the states, intp, shape (n, d).

    u: float32, shape (n, d). code: float32, shape (2^L,), L > bits. overlap: for each row, the L - bits bits that the
    first state has above its new ones and the last state has below: (n,), or None for free ends.
    Raises TypeError for another dtype, ValueError for another shape, or a code of no power of two above 2^bits.
    """
    d = require_rows(u, "u")
    require_float32(code, "code")
    n, count, fan = len(u), len(code), 1 << bits
    if code.ndim != 1 or count <= fan or count & (count - 1):
        raise ValueError(f"code must have a power of two of levels, more than {fan}, got shape {code.shape}")
    if overlap is not None and overlap.shape != (n,):
        raise ValueError(f"overlap must have shape ({n},), got {overlap.shape}")
    heads = count // fan
    row = np.arange(n)
    levels = code[:, None]
    cost = (levels - u[:, 0]) ** 2
    if overlap is not None:
        barred = np.full((heads, n), np.inf, dtype=np.float32)
        barred[overlap, row] = 0
        cost.reshape(heads, fan, n)[...] += barred[:, None]
    came_from = np.empty((d, heads, n), dtype=np.uint8)
    step = np.empty_like(cost)
    for t in range(1, d):
        # The predecessors of s are (s >> bits) with any `bits` bits on top: the leading axis of this view.
        before = cost.reshape(fan, heads, n)
        best, choice = before[0].copy(), came_from[t]
        choice[:] = 0
        for top in range(1, fan):
            np.copyto(choice, np.uint8(top), where=before[top] < best)
            np.minimum(best, before[top], out=best)
        np.subtract(levels, u[:, t], out=step)
        np.multiply(step, step, out=step)
        np.add(step.reshape(heads, fan, n), best[:, None], out=cost.reshape(heads, fan, n))
    if overlap is None:
        state = cost.argmin(axis=0)
    else:
        state = cost.reshape(fan, heads, n)[:, overlap, row].argmin(axis=0) * heads + overlap
    walk = np.empty((n, d), dtype=np.intp)
    walk[:, -1] = state
    for t in range(d - 1, 0, -1):
        head = state >> bits
        state = head + came_from[t, head, row].astype(np.intp) * heads
        walk[:, t - 1] = state
    return walk


def tail_biting(u: F32, code: F32, bits: int) -> States:
    """Walks that end in the bits they began with. Arguments and result as `viterbi`.

    QTIP's approximation: a free walk over the row turned by half shows which overlap its middle, now the row's ends,
    would choose; a second walk is held to it. Nearly optimal at twice the cost.
    """
    half = require_rows(u, "u") // 2
    free = viterbi(np.roll(u, half, axis=1), code, bits)
    return viterbi(u, code, bits, free[:, half] >> bits)


@dataclass(frozen=True)
class Trellis(Uncalibrated):
    """Rotation, unit rows, tail-biting walk, and the least-squares scale of the row in fp16.

    bits: 2 or 3. states: 256 or 4096. d at least L / bits.
    """

    bits: int
    states: int = 4096
    rotation: Transform = HAAR

    def __post_init__(self) -> None:
        codebook(self._state_bits, self.bits)

    @property
    def name(self) -> str:
        """`trellis4096-3`."""
        return f"trellis{self.states}-{self.bits}"

    def encode_decode(self, x: F32) -> F32:
        """Interface: `Fitted.encode_decode`."""
        d = require_rows(x, "x")
        self._require_width(d)
        u, size = unit_rows(x)
        rotation = self.rotation.fit(u)
        u = rotation.forward(u)
        code = codebook(self._state_bits, self.bits)
        y = np.empty_like(u)
        for start in range(0, len(u), ROWS_AT_ONCE):
            rows = slice(start, start + ROWS_AT_ONCE)
            y[rows] = code[tail_biting(u[rows], code, self.bits)]
        scale = store(size * least_squares(u, y), "fp16") / np.float32(d**0.5)
        return rotation.inverse(y) * scale

    def bits_per_value(self, n: int, d: int) -> float:
        """The walk, which needs no start state, and the scale."""
        self._require_width(d)
        return self.bits + FP16_BITS / d

    @property
    def _state_bits(self) -> int:
        return self.states.bit_length() - 1 if self.states & (self.states - 1) == 0 else 0

    def _require_width(self, d: int) -> None:
        if d * self.bits < self._state_bits:
            raise ValueError(f"{self.name} needs rows of at least {-(-self._state_bits // self.bits)} values, got {d}")
