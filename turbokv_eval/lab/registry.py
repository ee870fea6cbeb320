"""Every method of the laboratory by name: families with their rates, and METHODS, the flat list at those rates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from turbokv_eval.lab import ggml_types
from turbokv_eval.lab.conditioning import Balanced, CentreEqualise
from turbokv_eval.lab.groups import KiviKeys, KiviValues, TokenGroups
from turbokv_eval.lab.kvquant import KvQuantKeys
from turbokv_eval.lab.method import Method
from turbokv_eval.lab.mixed import HalfChannels, OutlierChannels
from turbokv_eval.lab.polarquant import PolarQuant
from turbokv_eval.lab.rotations import BlockDiagonal, KroneckerHadamard
from turbokv_eval.lab.scalar import ScalarCode
from turbokv_eval.lab.sketch import Qjl
from turbokv_eval.lab.transform import Transformed
from turbokv_eval.lab.trellis import Trellis
from turbokv_eval.lab.turbo import Turbo
from turbokv_eval.lab.turboquant import TurboQuantMse, TurboQuantProd
from turbokv_eval.lab.waterfill import WaterFilled
from turbokv_eval.lab.widths import UnequalWidths


@dataclass(frozen=True)
class Family:
    """A method at several rates. summary: one line for a list; rates: nominal bits a value that `build` takes."""

    summary: str
    rates: tuple[float, ...]
    build: Callable[[float], Method]

    def __call__(self, bits: float) -> Method:
        """The method at a nominal rate. Raises ValueError for a rate that is not in rates."""
        if bits not in self.rates:
            raise ValueError(f"no rate {bits:g}; there are {', '.join(f'{rate:g}' for rate in self.rates)}")
        return self.build(bits)


_CONDITION = CentreEqualise()
_GGML = {round(8 * t.block_bytes / ggml_types.BLOCK, 1): t for t in (ggml_types.Q8_0, ggml_types.Q5_0, ggml_types.Q4_0)}
_POLAR = {3.875: (4, 2), 3.375: (3, 2), 2.9375: (3, 1)}
_WHOLE = (1.0, 2.0, 3.0, 4.0)
_TURBO = (2.0, 3.0, 4.0)
_HALVES = (2.0, 2.5, 3.0, 3.5, 4.0)

FAMILIES: dict[str, Family] = {
    "ggml": Family("ggml's q8_0, q5_0, q4_0", tuple(_GGML), _GGML.__getitem__),
    "iq4_nl": Family("ggml's iq4_nl", (4.5,), lambda _: ggml_types.IQ4_NL_TYPE),
    "rotated_ggml": Family(
        "the same behind a rotation of the head, as llama.cpp's cache stores them",
        tuple(_GGML),
        lambda b: Transformed(KroneckerHadamard(), _GGML[b]),
    ),
    "conditioned_ggml": Family(
        "the same behind the fork's key conditioning",
        tuple(_GGML),
        lambda b: Transformed(_CONDITION, Transformed(KroneckerHadamard(), _GGML[b])),
    ),
    "lloyd": Family("Lloyd-Max levels without a rotation", (*_WHOLE, 5.0, 6.0, 7.0, 8.0), lambda b: ScalarCode(int(b))),
    "uniform": Family("uniform levels without a rotation", _WHOLE, lambda b: ScalarCode(int(b), "uniform")),
    "block2": Family(
        "Lloyd-Max behind rotations of 2 channels", _TURBO, lambda b: Transformed(BlockDiagonal(2), ScalarCode(int(b)))
    ),
    "block4": Family(
        "Lloyd-Max behind rotations of 4 channels", _TURBO, lambda b: Transformed(BlockDiagonal(4), ScalarCode(int(b)))
    ),
    "turboquant_mse": Family("TurboQuant, Algorithm 1", _WHOLE, lambda b: TurboQuantMse(int(b))),
    "turboquant_mse_log8": Family(
        "TurboQuant, Algorithm 1, norms in one byte", _WHOLE, lambda b: TurboQuantMse(int(b), norm="log8")
    ),
    "turboquant_prod": Family("TurboQuant, Algorithm 2", _WHOLE, lambda b: TurboQuantProd(int(b))),
    "half_channels": Family("half of the rotated channels one bit more", (2.5, 3.5), lambda b: HalfChannels(int(b))),
    "outlier_channels": Family(
        "TurboQuant with 32 outlier channels one bit more", (2.0, 3.0), lambda b: OutlierChannels(int(b))
    ),
    "qjl": Family("signs of a Gaussian sketch", (1.0, 2.0, 3.0, 4.0), Qjl),
    "polarquant": Family("angles of a recursive polar form", tuple(_POLAR), lambda b: PolarQuant(*_POLAR[b])),
    "group32": Family("scale and zero for 32 channels of a token", _TURBO, lambda b: TokenGroups(int(b))),
    "kivi_keys": Family("per channel, 128 tokens wait in fp16", _TURBO, lambda b: KiviKeys(int(b))),
    "kivi_values": Family("per token, the newest 128 in fp16", _TURBO, lambda b: KiviValues(int(b))),
    "kvquant_keys": Family("per channel, 1 % outliers sparse", _TURBO, lambda b: KvQuantKeys(int(b))),
    "turbo": Family("the fork's types, plain", _TURBO, lambda b: Turbo(int(b))),
    "centred_turbo": Family(
        "the fork's types, keys centred", _TURBO, lambda b: Transformed(CentreEqualise(equalise=False), Turbo(int(b)))
    ),
    "equalised_turbo": Family(
        "the fork's types, keys equalised", _TURBO, lambda b: Transformed(CentreEqualise(centre=False), Turbo(int(b)))
    ),
    "conditioned_turbo": Family(
        "the fork's types with key conditioning", _TURBO, lambda b: Transformed(_CONDITION, Turbo(int(b)))
    ),
    "conditioned_prod": Family(
        "TurboQuant, Algorithm 2, with key conditioning",
        _TURBO,
        lambda b: Transformed(_CONDITION, TurboQuantProd(int(b))),
    ),
    "conditioned_half_channels": Family(
        "half of the rotated channels one bit more, with key conditioning",
        (2.5, 3.5),
        lambda b: Transformed(_CONDITION, HalfChannels(int(b))),
    ),
    "balanced_turbo": Family(
        "the fork's types behind the dense balanced map", _TURBO, lambda b: Transformed(Balanced(), Turbo(int(b)))
    ),
    "conditioned_widths": Family(
        "unequal widths behind key conditioning",
        (2.0, 2.5, 3.0, 3.5, 4.0),
        lambda b: Transformed(_CONDITION, UnequalWidths(b)),
    ),
    "balanced_widths": Family(
        "unequal widths behind the dense balanced map",
        (2.0, 2.5, 3.0, 3.5, 4.0),
        lambda b: Transformed(Balanced(), UnequalWidths(b)),
    ),
    "balanced_quarters": Family(
        "quarters at 5, 3, 2, 2 bits behind the dense balanced map",
        (3.0,),
        lambda b: Transformed(Balanced(), UnequalWidths(b, 4, (5, 3, 2, 2))),
    ),
    "waterfill": Family("widths channel by channel, nothing before", _HALVES, WaterFilled),
    "centred_waterfill": Family(
        "widths channel by channel, keys centred, no rotation",
        _HALVES,
        lambda b: Transformed(CentreEqualise(equalise=False), WaterFilled(b)),
    ),
    "balanced_waterfill": Family(
        "widths channel by channel behind the dense balanced map",
        _HALVES,
        lambda b: Transformed(Balanced(), WaterFilled(b)),
    ),
    "trellis256": Family("trellis-coded, 256 states", (2.0, 3.0), lambda b: Trellis(int(b), 256)),
    "trellis4096": Family("trellis-coded, 4096 states", (2.0, 3.0), lambda b: Trellis(int(b), 4096)),
    "conditioned_trellis256": Family(
        "trellis-coded, 256 states, with key conditioning",
        (2.0, 3.0),
        lambda b: Transformed(_CONDITION, Trellis(int(b), 256)),
    ),
    "balanced_trellis256": Family(
        "trellis-coded, 256 states, behind the dense balanced map",
        (2.0, 3.0),
        lambda b: Transformed(Balanced(), Trellis(int(b), 256)),
    ),
}

METHODS: dict[str, Method] = {m.name: m for family in FAMILIES.values() for m in map(family, family.rates)}
"""By `Method.name`, such as `turboquant_mse-3`."""
