"""A KV cache over any pair of methods: sinks and recent tokens kept, the rest quantised."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from turbokv_eval.errors import BadInput
from turbokv_eval.lab.method import Fitted

F32 = NDArray[np.float32]

# A kept value is stored as f16.
KEPT_BITS = 16


@dataclass(frozen=True)
class Policy:
    """What is kept as f16.

    sinks:  first tokens: attention sinks carry much weight and have keys unlike the others (Xiao et al. 2023).
    window: recent tokens, at least so many (KIVI's residual, Liu et al. 2024, section 3.3).
    chunk:  tokens that leave the window at a time, for methods that group values of several tokens: a multiple of their
            group. 1 for methods that store token by token.
    """

    sinks: int = 0
    window: int = 0
    chunk: int = 1

    def __post_init__(self) -> None:
        if self.sinks < 0 or self.window < 0 or self.chunk < 1:
            raise BadInput(f"a cache needs sinks and window of 0 or more and a chunk of 1 or more, not {self}")


class Cache:
    """The cache of one KV head.

    A reference, not a saver of memory: what `memory_bits` counts is what the methods would store. Keys are kept beside
    that, because some methods estimate scores from a code and the query without ever decoding a key.
    """

    def __init__(self, keys: Fitted, values: Fitted, policy: Policy | None = None) -> None:
        """keys, values: fitted methods, the same for the life of the cache."""
        self._key_method = keys
        self._value_method = values
        self._policy = policy or Policy()
        self._keys: F32 | None = None
        self._values: F32 | None = None
        self._decoded: F32 | None = None

    def __len__(self) -> int:
        """Tokens."""
        return 0 if self._keys is None else len(self._keys)

    def append(self, keys: F32, values: F32) -> None:
        """keys: f32 [n, d]; values: f32 [n, dv], of the next n tokens.

        Raises BadInput when the shapes do not fit each other or the tokens before.
        """
        if keys.ndim != 2 or values.ndim != 2 or len(keys) != len(values):
            raise BadInput(f"append takes keys [n, d] and values [n, dv], not {keys.shape} and {values.shape}")
        if keys.dtype != np.float32 or values.dtype != np.float32:
            raise BadInput(f"append takes float32, not {keys.dtype} and {values.dtype}")
        if self._keys is None or self._values is None or self._decoded is None:
            self._keys, self._values, self._decoded = keys.copy(), values.copy(), values.copy()
            before = self._policy.sinks
        else:
            if keys.shape[1] != self._keys.shape[1] or values.shape[1] != self._values.shape[1]:
                raise BadInput(
                    f"the cache holds keys of {self._keys.shape[1]} and values of {self._values.shape[1]}, these have"
                    f" {keys.shape[1]} and {values.shape[1]}"
                )
            before = self._stored.stop
            self._keys = np.concatenate([self._keys, keys])
            self._values = np.concatenate([self._values, values])
            self._decoded = np.concatenate([self._decoded, values])
        # What was stored once is not stored again: a longer cache does not change older codes.
        fresh = slice(max(before, self._policy.sinks), self._stored.stop)
        if fresh.stop > fresh.start:
            self._decoded[fresh] = self._value_method.encode_decode(self._values[fresh])

    @property
    def _stored(self) -> slice:
        """The tokens that are quantised: all but sinks and window, in whole chunks."""
        policy = self._policy
        count = max(0, len(self) - policy.sinks - policy.window) // policy.chunk * policy.chunk
        return slice(policy.sinks, policy.sinks + count)

    @property
    def quantised(self) -> int:
        """Tokens that are quantised."""
        return int(self._stored.stop - self._stored.start)

    def attention_scores(self, queries: F32) -> F32:
        """queries: f32 [m, d]. Estimates of queries @ keys.T, f32 [m, tokens]; neither scaled nor masked."""
        keys = self._filled(self._keys)
        if queries.ndim != 2 or queries.shape[1] != keys.shape[1]:
            raise BadInput(f"queries have the shape {queries.shape}, not [m, {keys.shape[1]}]")
        scores = np.asarray(queries @ keys.T, dtype=np.float32)
        if self.quantised:
            scores[:, self._stored] = self._key_method.scores(queries, keys[self._stored])
        return scores

    def values(self) -> F32:
        """The values as the cache gives them back, f32 [tokens, dv]."""
        return self._filled(self._decoded).copy()

    def attend(self, queries: F32, scale: float) -> F32:
        """queries: f32 [m, d], all after the last token. softmax(scale * scores) @ values, f32 [m, dv]."""
        logits = self.attention_scores(queries) * np.float32(scale)
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(weights / weights.sum(axis=1, keepdims=True) @ self.values(), dtype=np.float32)

    def memory_bits(self) -> float:
        """Bits that keys and values take: codes with their side information, and f16 for what is kept."""
        keys, values = self._filled(self._keys), self._filled(self._values)
        stored, kept = self.quantised, len(self) - self.quantised
        total = float(kept * KEPT_BITS * (keys.shape[1] + values.shape[1]))
        if stored:
            for method, width in ((self._key_method, keys.shape[1]), (self._value_method, values.shape[1])):
                total += method.bits_per_value(stored, width) * stored * width
        return total

    def _filled(self, array: F32 | None) -> F32:
        if array is None:
            raise BadInput("the cache is empty: append tokens first")
        return array
