"""Random weights, scaled so that a model of two layers feels what its KV cache does.

Every tensor has a generator of its own, seeded by the names of model and tensor: adding one changes no other.

The scales aim at a residual stream of unit size at every layer's input, and at scores q.k of a chosen standard
deviation s. Over n Gaussian scores the entropy of the softmax is about ln(n) - s^2/2 while s^2 < 2 ln(n) (the random
energy model; Derrida, Phys. Rev. B 24, 1981), so s = 3 leaves a few of some hundred tokens in sight: peaked, and still
an average, so that an error of one key or value moves the output smoothly.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]

# Standard deviation of a score before the softmax.
SCORE_STD = 3.0
# A few channels of K, Q and V carry far more than the others, as in trained models: without the rotation a block's
# scale is spent on them.
OUTLIER = 4.0
OUTLIER_EVERY = 8


def rng(model: str, tensor: str) -> np.random.Generator:
    seed = hashlib.sha256(f"{model}/{tensor}".encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(seed[:8], "little")))


def linear(gen: np.random.Generator, n_out: int, n_in: int, gain: float = 1.0) -> F32:
    """[n_out, n_in], such that an input of unit size gives outputs of size `gain`."""
    return gen.standard_normal((n_out, n_in), dtype=np.float32) * np.float32(gain / np.sqrt(n_in))


def channel_gains(gen: np.random.Generator, d: int) -> F32:
    """[d], mean square 1: log-normal, with every `OUTLIER_EVERY`-th channel `OUTLIER` times as large."""
    gains = np.exp(0.3 * gen.standard_normal(d))
    gains[gen.permutation(d)[: max(1, d // OUTLIER_EVERY)]] *= OUTLIER
    return (gains / np.sqrt(np.mean(gains**2))).astype(np.float32)


def score_gain(gains: F32, scale: float, std: float = SCORE_STD) -> float:
    """The size of q and k, both with the channel gains `gains`, that gives scale * q.k the standard deviation `std`.

    q and k are independent, of variance (g_c a)^2 in channel c: var(q.k) = a^4 sum g_c^4.
    """
    return float(np.sqrt(std / (abs(scale) * np.sqrt(np.sum(gains.astype(np.float64) ** 4)))))


def embedding(gen: np.random.Generator, n_vocab: int, n_embd: int, size: float = 1.0) -> F32:
    """[n_vocab, n_embd] of size `size`: a part that all tokens share, so that keys have a mean, and their own part."""
    shared = gen.standard_normal(n_embd, dtype=np.float32)
    own = gen.standard_normal((n_vocab, n_embd), dtype=np.float32)
    return (np.float32(size) * (np.float32(0.5) * shared + np.float32(np.sqrt(0.75)) * own)).astype(np.float32)


def ones(n: int) -> F32:
    return np.ones(n, dtype=np.float32)


def zeros(n: int) -> F32:
    return np.zeros(n, dtype=np.float32)
