"""One plain recommendation at the end of a comparison: a pure function of its document."""

from typing import Any


def recommend(document: dict[str, Any], *, max_kld: float, budget: int | None = None) -> dict[str, Any]:
    """The smallest cache whose mean KL divergence is at most `max_kld` nats.

    budget: bytes that the cache may take at the number of tokens that was run; None: any.
    Returns {"label": str or None, "text": str}.
    """
    rows = [row for row in document["rows"] if row["status"] == "ok" and row["quality"] and row["kv"]]
    if not rows:
        return {"label": None, "text": "No recommendation: no row has both a size and a quality."}
    good = [row for row in rows if row["quality"]["kld_mean"] <= max_kld]
    fits = [row for row in good if budget is None or row["kv"]["mib"] * (1 << 20) <= budget]
    limits = f"mean KLD at most {max_kld:g}"
    if budget is not None:
        limits += f", {budget / (1 << 20):.0f} MiB for {rows[0]['kv']['cells']} tokens"
    if not fits:
        missed = "the budget" if good else "the quality"
        return {"label": None, "text": f"No recommendation: no measured type meets {missed} ({limits})."}
    best = min(fits, key=lambda row: (row["kv"]["mib"], row["quality"]["kld_mean"]))
    return {
        "label": best["label"],
        "text": (
            f"Recommended: {best['label']}, the smallest cache within {limits} (KLD {best['quality']['kld_mean']:.4f},"
            f" {best['kv']['mib']:.2f} MiB). Measured at context {document['settings']['ctx']} on this text only."
        ),
    }
