"""The trellis: Viterbi against all walks, tail-biting walks, and the distortions that were asked of it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from lab_rows import nmse, normal

from turbokv_eval.lab.trellis import MULTIPLIERS, Trellis, codebook, tail_biting, viterbi


def all_walks(bits: int, state_bits: int, d: int) -> list[tuple[int, ...]]:
    """Every walk of d states, by trying every start and every new bits."""
    walks = []
    for start in range(2**state_bits):
        for new in itertools.product(range(2**bits), repeat=d - 1):
            walk = [start]
            for n in new:
                walk.append((walk[-1] << bits | n) % 2**state_bits)
            walks.append(tuple(walk))
    return walks


@pytest.mark.parametrize(("bits", "state_bits", "d"), [(1, 3, 6), (2, 4, 4), (1, 4, 5)])
def test_viterbi_finds_the_best_of_all_walks(bits: int, state_bits: int, d: int) -> None:
    code = normal(1, 2**state_bits, 3)[0]
    u = normal(20, d)
    walks = np.array(all_walks(bits, state_bits, d))
    cost = ((code[walks][None] - u[:, None]) ** 2).sum(axis=2)
    found = viterbi(u, code, bits)
    np.testing.assert_allclose(((code[found] - u) ** 2).sum(axis=1), cost.min(axis=1), rtol=1e-5)
    # With the overlap given: the best of the walks that begin and end in it.
    overlap = np.arange(20) % 2 ** (state_bits - bits)
    held = viterbi(u, code, bits, overlap)
    fits = (walks[:, 0] >> bits == overlap[:, None]) & (walks[:, -1] % 2 ** (state_bits - bits) == overlap[:, None])
    best = np.where(fits, cost, np.inf).min(axis=1)
    np.testing.assert_allclose(((code[held] - u) ** 2).sum(axis=1), best, rtol=1e-5)


@pytest.mark.parametrize(("state_bits", "bits"), MULTIPLIERS)
def test_a_tail_biting_walk_is_given_by_its_new_bits_alone(state_bits: int, bits: int) -> None:
    code = codebook(state_bits, bits)
    walk = tail_biting(normal(8, 128), code, bits)
    new = walk & (2**bits - 1)
    state = np.zeros(8, dtype=np.intp)
    # Twice around: after the first turn the state holds the row's last bits, which a decoder has as well.
    for t in [*range(128), *range(128)]:
        state = (state << bits | new[:, t]) % 2**state_bits
        if t == 0:
            walked = []
        walked.append(state)
    np.testing.assert_array_equal(np.array(walked).T, walk)


@pytest.mark.parametrize(("state_bits", "bits"), MULTIPLIERS)
def test_codebook_is_gaussian_and_antisymmetric(state_bits: int, bits: int) -> None:
    code = codebook(state_bits, bits)
    assert len(np.unique(code)) == 2**state_bits
    np.testing.assert_allclose(code, -code[::-1], atol=1e-6)
    assert float((code.astype(np.float64) ** 2).mean()) == pytest.approx(1, rel=1e-6)


@pytest.mark.parametrize(
    ("states", "bits", "bar", "rows"), [(4096, 3, 0.0190, 256), (256, 3, 0.0225, 1024), (4096, 2, 0.070, 768)]
)
def test_distortion_of_gaussian_rows(states: int, bits: int, bar: float, rows: int) -> None:
    x = normal(rows, 128, 42)
    method = Trellis(bits, states)
    assert method.bits_per_value(rows, 128) == bits + 16 / 128
    assert nmse(x, method.encode_decode(x)) <= bar


def test_more_states_are_better_and_both_beat_the_scalar_code() -> None:
    x = normal(128, 64)
    few, many = (nmse(x, Trellis(2, states).encode_decode(x)) for states in (256, 4096))
    assert many < few < 0.08


def test_bad_arguments_are_refused() -> None:
    for make in (lambda: Trellis(4, 256), lambda: Trellis(2, 512), lambda: Trellis(2, 300)):
        with pytest.raises(ValueError, match=r"no trellis of .* there are 256 states at 2 bits"):
            make()
    with pytest.raises(ValueError, match=r"power of two of levels, more than 4, got shape \(6,\)"):
        viterbi(normal(1, 8), normal(1, 6)[0], 2)
    with pytest.raises(ValueError, match=r"overlap must have shape \(2,\), got \(1,\)"):
        viterbi(normal(2, 8), normal(1, 16)[0], 2, np.zeros(1, dtype=np.intp))
    with pytest.raises(TypeError, match="u must be a NumPy array of float32, got float64"):
        tail_biting(np.zeros((1, 8)), normal(1, 16)[0], 2)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least 6 values, got 5"):
        Trellis(2, 4096).encode_decode(normal(1, 5))
