"""The fork's turbo types as a method: the exact bytes of docs/FORMAT.md behind its rotation."""

from __future__ import annotations

from dataclasses import dataclass

from turbokv_eval.lab.method import F32, Uncalibrated, require_rows
from turbokv_eval.reference import codec, rotation
from turbokv_eval.reference.types import TurboType, block_for, by_shape


@dataclass(frozen=True)
class Turbo(Uncalibrated):
    """turbo2, turbo3 or turbo4: signed Hadamard rotation over the whole head, blocks with a least-squares fp16 scale.

    bits: 2, 3 or 4. layer: seeds the signs. rotate: False for rows that a transform before has rotated.
    """

    bits: int
    layer: int = 0
    rotate: bool = True

    @property
    def name(self) -> str:
        """`turbo-3`; `turbo-plain-3` without the rotation."""
        return f"turbo{'' if self.rotate else '-plain'}-{self.bits}"

    def encode_decode(self, x: F32) -> F32:
        """Interface: `Fitted.encode_decode`. ValueError for a d that has no block."""
        d = require_rows(x, "x")
        turbo_type = self._type(d)
        y = rotation.forward(x, self.layer) if self.rotate else x
        blocks = codec.encode(y.reshape(-1, turbo_type.n), turbo_type)
        back = codec.decode(blocks, turbo_type).reshape(x.shape)
        return rotation.inverse(back, self.layer) if self.rotate else back

    def bits_per_value(self, n: int, d: int) -> float:
        """The type's block bytes."""
        return self._type(d).bits_per_value

    def _type(self, d: int) -> TurboType:
        return by_shape(self.bits, block_for(d))
