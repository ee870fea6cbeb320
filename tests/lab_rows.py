"""Random rows for the tests of the laboratory."""

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]


def normal(n: int, d: int, seed: int = 0) -> F32:
    """Gaussian rows, float32 (n, d)."""
    return np.random.default_rng(seed).standard_normal((n, d)).astype(np.float32)


def nmse(x: F32, y: F32) -> float:
    """Sum of squared errors by sum of squares."""
    return float(((x.astype(np.float64) - y) ** 2).sum() / (x.astype(np.float64) ** 2).sum())
