"""The Pareto plot of `lab attention`: a pure function of its document."""

from pathlib import Path
from typing import Any

from turbokv_eval.errors import BadInput
from turbokv_eval.lab.attention import RANKED_BY, SIDES

FORMATS = (".svg", ".png")

_AXES = {"kl": "KL of the attention distribution, nats", "output_error": "relative error of the output"}


def check_plot(path: Path) -> None:
    """Raises BadInput for a path that cannot hold a plot."""
    if path.suffix.lower() not in FORMATS:
        raise BadInput(f"--plot {path}: the name must end in {' or '.join(FORMATS)}")
    if not path.parent.is_dir():
        raise BadInput(f"cannot write {path}: there is no folder {path.parent}")


def save_pareto(document: dict[str, Any], path: Path) -> None:
    """Writes bits per value against loss, one panel a side, the Pareto front as a line.

    path: ends in .svg or .png. Raises as `check_plot`, and BadInput when the file cannot be written.
    """
    check_plot(path)
    # Here, because it takes a second and most commands draw nothing. Figure needs no display and keeps no state.
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    sides = [side for side in SIDES if any(row["side"] == side for row in document["rows"])]
    if not sides:
        raise BadInput("there is nothing to plot: no method could be measured")
    # Text stays text, and ids do not change from run to run.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "turbokv"}):
        figure = Figure(figsize=(8 * len(sides), 9), layout="constrained")
        panels = figure.subplots(1, len(sides), squeeze=False)[0]
        for panel, side in zip(panels, sides, strict=True):
            _draw(panel, side, [row for row in document["rows"] if row["side"] == side])
        capture = document["capture"]
        figure.suptitle(f"{capture['model']}, head dim {capture['head_dim']}, {capture['text_file']}")
        try:
            figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)
        except OSError as e:
            raise BadInput(f"cannot write {path}: {e.strerror}") from e


def _draw(panel: Any, side: str, rows: list[dict[str, Any]]) -> None:
    metric = RANKED_BY[side]
    front = sorted((r["bits_per_value"], r["metrics"][metric]) for r in rows if r["pareto"])
    panel.plot([x for x, _ in front], [y for _, y in front], color="0.6", linewidth=1, zorder=1)
    for row in rows:
        x, y = row["bits_per_value"], row["metrics"][metric]
        panel.scatter([x], [y], s=22, color="C3" if row["pareto"] else "C0", zorder=2)
        panel.annotate(row["method"], (x, y), xytext=(4, 2), textcoords="offset points", fontsize=7)
    panel.set_yscale("log")
    panel.set_xlabel("bits per value, side information counted")
    panel.set_ylabel(_AXES[metric])
    panel.set_title(f"{side} quantised")
    panel.grid(True, which="both", linewidth=0.3)
