"""The laboratory's cache keeps what it says, quantises the rest once, and counts every bit."""

import numpy as np
import pytest
from lab_world import Fake
from numpy.typing import NDArray

from turbokv_eval.errors import BadInput
from turbokv_eval.lab.cache import Cache, Policy

F32 = NDArray[np.float32]


class Halve:
    """Stores half of what it is given, and remembers each call."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def encode_decode(self, x: F32) -> F32:
        self.calls.append(len(x))
        return x / 2

    def scores(self, queries: F32, x: F32) -> F32:
        return np.asarray(queries @ x.T / 2, dtype=np.float32)

    def bits_per_value(self, n: int, d: int) -> float:
        return 3.0 + 16 / d


def tokens(n: int, seed: int = 0) -> tuple[F32, F32]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 8)).astype(np.float32), rng.normal(size=(n, 4)).astype(np.float32)


def filled(policy: Policy, *pieces: int) -> tuple[Cache, Halve, F32, F32]:
    keys, values = tokens(sum(pieces))
    method = Halve()
    cache = Cache(method, method, policy)
    at = 0
    for piece in pieces:
        cache.append(keys[at : at + piece], values[at : at + piece])
        at += piece
    return cache, method, keys, values


def test_sinks_and_window_are_kept_and_the_rest_is_quantised() -> None:
    cache, _, keys, values = filled(Policy(sinks=2, window=5), 20)
    factor = np.ones(20, dtype=np.float32)
    factor[2:15] = 0.5
    np.testing.assert_allclose(cache.values(), values * factor[:, None], rtol=1e-6)
    queries = tokens(3, seed=1)[0]
    np.testing.assert_allclose(cache.attention_scores(queries), queries @ keys.T * factor, rtol=1e-5, atol=1e-6)
    assert (len(cache), cache.quantised) == (20, 13)


@pytest.mark.parametrize("pieces", [(20,), (1, 19), (1,) * 20, (2, 5, 6, 7)])
def test_how_tokens_come_does_not_matter_and_none_is_stored_twice(pieces: tuple[int, ...]) -> None:
    policy = Policy(sinks=2, window=5, chunk=4)
    cache, method, _, _ = filled(policy, *pieces)
    whole, _, _, _ = filled(policy, 20)
    np.testing.assert_array_equal(cache.values(), whole.values())
    # 13 tokens have left the window, in whole chunks that is 12.
    assert (cache.quantised, sum(method.calls)) == (12, 12)
    assert all(call % 4 == 0 for call in method.calls)


def test_memory_counts_codes_side_information_and_what_is_kept() -> None:
    cache, _, _, _ = filled(Policy(sinks=2, window=5), 20)
    assert cache.memory_bits() == 7 * 16 * 12 + 13 * (8 * (3 + 2) + 4 * (3 + 4))
    short, _, _, _ = filled(Policy(window=32), 20)
    assert short.memory_bits() == 20 * 16 * 12


def test_attention_over_an_exact_method_is_attention() -> None:
    keys, values = tokens(20)
    cache = Cache(Fake("k"), Fake("v"))
    cache.append(keys, values)
    queries = tokens(3, seed=1)[0]
    weights = np.exp(0.3 * queries.astype(np.float64) @ keys.T)
    wanted = weights / weights.sum(axis=1, keepdims=True) @ values
    np.testing.assert_allclose(cache.attend(queries, 0.3), wanted, rtol=1e-4, atol=1e-6)


def test_what_was_given_may_change_afterwards() -> None:
    keys, values = tokens(8)
    cache = Cache(Halve(), Halve(), Policy(window=8))
    cache.append(keys, values)
    before = cache.values()
    values += 1
    cache.values()[:] = 0
    np.testing.assert_array_equal(cache.values(), before)


def test_wrong_shapes_are_refused_and_change_nothing() -> None:
    cache, _, keys, values = filled(Policy(), 8)
    for k, v, said in (
        (keys, values[:4], "keys \\[n, d\\]"),
        (keys[0], values[0], "keys \\[n, d\\]"),
        (keys[:, :4], values, "these have 4 and 4"),
        (keys.astype(np.float64), values, "float32, not float64"),
    ):
        with pytest.raises(BadInput, match=said):
            cache.append(k, v)
    assert len(cache) == 8
    with pytest.raises(BadInput, match="not \\[m, 8\\]"):
        cache.attention_scores(keys[:, :4])
    with pytest.raises(BadInput, match="empty"):
        Cache(Halve(), Halve()).values()
    with pytest.raises(BadInput, match="chunk of 1 or more"):
        Policy(chunk=0)
