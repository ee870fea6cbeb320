"""Single chunks of a row's run, and paired differences between rows."""

import itertools
from typing import Any

import numpy as np

from turbokv_eval import paired, perplexity


def of_run(output: str) -> dict[str, Any] | None:
    """Single chunks of a run and a bound of their rounding error; None when it prints no running means."""
    ratios, klds = perplexity.running_means(output)
    if not klds:
        return None
    kld, error = paired.per_chunk(klds, 5)
    ratio, _ = paired.per_chunk(ratios, 5)
    found = {"kld": kld.round(5).tolist(), "ln_ratio": ratio.round(5).tolist(), "rounding": error}
    return found | {"kld_interval": paired.interval(kld), "ln_ratio_interval": paired.interval(ratio)}


def differences(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Paired differences of the mean KLD: each row against f16 and against its neighbour, Holm over all."""
    have = [row for row in rows if row["chunks"] and not row["errors"]]
    f16 = [row for row in have if row["label"] == "f16"]
    pairs = [(row, f16[0]) for row in have if f16 and row is not f16[0]]
    pairs += [(b, a) for a, b in itertools.pairwise(have) if a not in f16 and b not in f16]
    found: list[dict[str, Any]] = []
    for a, b in pairs:
        difference = np.subtract(a["chunks"]["kld"], b["chunks"]["kld"])
        bounds = paired.interval(difference)
        p = paired.permutation_p(difference)
        found.append(
            {"a": a["label"], "b": b["label"], "difference": float(difference.mean()), "interval": bounds, "p": p}
        )
    for entry, p in zip(found, paired.holm([entry["p"] for entry in found]), strict=True):
        entry["p_holm"], entry["shown"] = p, p < 1 - paired.CONFIDENCE
    return found
