"""One plain recommendation at the end of a comparison: a pure function of its document."""

from typing import Any


def recommend(document: dict[str, Any], *, max_kld: float, budget: int | None = None) -> dict[str, Any]:
    """The smallest cache whose mean KL divergence is at most `max_kld` nats, on every text and at every context.

    budget: bytes that the cache may take at the number of tokens that was run; None: any.
    Returns {"label": str or None, "text": str}.
    """
    count = max(1, len(document["evaluations"]))
    rows = [row for row in document["rows"] if row["status"] == "ok" and len(row["quality"]) == count and row["kv"]]
    if not rows:
        return {"label": None, "text": "No recommendation: no row has both a size and a quality."}
    good = [row for row in rows if _worst(row) <= max_kld]
    fits = [row for row in good if budget is None or row["kv"]["mib"] * (1 << 20) <= budget]
    limits = f"mean KLD at most {max_kld:g}"
    if budget is not None:
        limits += f", {budget / (1 << 20):.0f} MiB for {rows[0]['kv']['cells']} tokens"
    if not fits:
        missed = "the budget" if good else "the quality"
        return {"label": None, "text": f"No recommendation: no measured type meets {missed} ({limits})."}
    best = min(fits, key=lambda row: (row["kv"]["mib"], _worst(row)))
    contexts, texts = document["settings"]["contexts"], len(document["texts"])
    at = f"context {contexts[0]}" if len(contexts) == 1 else f"contexts {', '.join(map(str, contexts))}"
    on = "this text" if texts == 1 else f"these {texts} texts"
    return {
        "label": best["label"],
        "text": (
            f"Recommended: {best['label']}, the smallest cache within {limits} (KLD {_worst(best):.4f},"
            f" {best['kv']['mib']:.2f} MiB).{_retrieval(best)} Measured at {at} on {on} only."
        ),
    }


def _worst(row: dict[str, Any]) -> float:
    return max(float(quality["kld_mean"]) for quality in row["quality"])


def _retrieval(row: dict[str, Any]) -> str:
    """What KLD does not say: the planted facts that the f32 cache finds and this one does not."""
    found, there = (sum(entry["all"][name] for entry in row["needle"]) for name in ("found", "n"))
    return f" It finds {found} of the {there} planted facts that an f32 cache finds." if there else ""
