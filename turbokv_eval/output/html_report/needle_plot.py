"""The heat map of needle retrieval: cache types down, positions in the text across, one map for each context."""

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from turbokv_eval.output.html_report.plots import EDGE, GOOD, TEXT, Plot, svg_of
from turbokv_eval.results.reader import Needle, Run


def needle_contexts(run: Run) -> list[int]:
    """The contexts at which any row has needles."""
    return sorted({needle.ctx for row in run.rows for needle in row.needle})


def heat_map(run: Run, ctx: int) -> Plot:
    """The share of needles that each cache type finds, of those that the reference finds."""
    found = {row.label: {n.depth: n for n in row.needle if n.ctx == ctx} for row in run.rows}
    depths = sorted({depth for needles in found.values() for depth in needles})

    def draw(axes: Axes) -> None:
        for y, needles in enumerate(found.values()):
            for x, depth in enumerate(depths):
                _cell(axes, x, y, needles.get(depth))
        axes.set_xlim(-0.5, len(depths) - 0.5)
        axes.set_ylim(len(found) - 0.5, -0.5)
        axes.set_xticks(range(len(depths)), [f"{depth:g}%" for depth in depths])
        axes.set_yticks(range(len(found)), list(found))
        axes.tick_params(length=0)
        axes.grid(visible=False)
        axes.set_xlabel("position of the fact in the text")

    title = f"Needle retrieval at {ctx} tokens"
    summary = (
        "Share of the facts that the f32 reference finds which each cache type finds too; the fuller the colour, the"
        " more. A cell with a dash has no evidence: the reference finds nothing there, or it was not measured."
    )
    return Plot(f"needle-{ctx}-map", title, summary, svg_of(f"needle-{ctx}-map", title, summary, draw))


def _cell(axes: Axes, x: int, y: int, needle: Needle | None) -> None:
    share = None if needle is None else needle.score
    # the opacity is the share, so that one colour serves the light and the dark page
    alpha = 0.0 if share is None else 0.06 + 0.6 * share
    axes.add_patch(Rectangle((x - 0.47, y - 0.45), 0.94, 0.9, facecolor=GOOD, edgecolor="none", alpha=alpha))
    axes.add_patch(Rectangle((x - 0.47, y - 0.45), 0.94, 0.9, facecolor="none", edgecolor=EDGE, linewidth=0.6))
    label = "\N{EN DASH}" if share is None or needle is None else f"{100 * share:.0f}%"
    axes.text(x, y, label, ha="center", va="center", color=TEXT, fontsize=10)
