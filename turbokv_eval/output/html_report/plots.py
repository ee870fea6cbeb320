"""The plots of a report, as SVG that takes its colours from the page, so that light and dark need no second plot."""

import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from turbokv_eval.results.reader import Number, Row, Run
from turbokv_eval.units import format_size

# Colours that no plot has by chance; each becomes a variable of the page (report.html.j2).
TEXT, GRID, EDGE, PAPER = "#b00001", "#b00002", "#b00003", "#b00004"
GOOD = "#a00004"  # a series too
_SERIES = tuple(f"#a0000{i}" for i in range(1, 9))
_VARIABLES = {
    TEXT: "--ink",
    GRID: "--grid",
    EDGE: "--rule",
    PAPER: "--paper",
    **{color: f"--s{i}" for i, color in enumerate(_SERIES, 1)},
}
_MARKERS = "os^Dv<>P"
# left, bottom, right, top
_Box = tuple[float, float, float, float]
# Inches of 72 units each: 5.6 is as wide as half a page, and a phone scales it down by a fifth at most.
_WIDTH, _HEIGHT = 5.6, 3.6
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "turbokv",
    "font.family": "sans-serif",
    "font.size": 11,
    "text.color": TEXT,
    "axes.edgecolor": EDGE,
    "axes.labelcolor": TEXT,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": EDGE,
    "ytick.color": EDGE,
    "xtick.labelcolor": TEXT,
    "ytick.labelcolor": TEXT,
    "legend.frameon": False,
    "legend.fontsize": 10,
    "lines.linewidth": 1.8,
    "lines.markersize": 6,
}


@dataclass(frozen=True)
class Plot:
    """One plot, or the reason why there is none.

    svg: inline SVG; empty where `missing` says why. summary: what it shows, in words.
    """

    name: str
    title: str
    summary: str
    svg: str = ""
    missing: str = ""


def all_plots(run: Run) -> list[Plot]:
    """Every plot of a report, in its order."""
    return [
        kld_against_bits(run),
        kld_against_context(run),
        speed_against_depth(run, "tg", "Generation speed against depth"),
        speed_against_depth(run, "pp", "Prompt speed against depth"),
        memory_against_context(run),
    ]


def pareto_front(points: Sequence[tuple[float, float, str]]) -> list[str]:
    """Labels of the points (cost, harm, label) that no other point beats in both, by rising cost."""
    front: list[str] = []
    best = math.inf
    for _, harm, label in sorted(points):
        if harm < best:
            front.append(label)
            best = harm
    return front


def front_points(run: Run) -> list[tuple[float, float, str]]:
    """Bits a value and mean KLD (the worst of all texts and contexts) of every row that has both."""
    found = []
    for row in run.rows:
        kld = row.worst("kld_mean", highest=True)
        if row.bits is not None and kld is not None and not row.errors:
            found.append((row.bits, kld.value, row.label))
    return found


def kld_against_bits(run: Run) -> Plot:
    """Quality against size, and the front of the types that nothing beats in both."""
    title = "KL divergence against bits a value"
    points = [point for point in front_points(run) if point[1] > 0]
    if len(points) < 2:
        return Plot("kld-bits", title, "", missing="fewer than two rows have a quality and a size")
    front = pareto_front(points)

    def draw(axes: Axes) -> None:
        by_label = {label: (bits, kld) for bits, kld, label in points}
        axes.plot(*zip(*(by_label[label] for label in front), strict=True), color=EDGE, linestyle="--", linewidth=1.2)
        for bits, kld, label in points:
            row, color, marker = _row_style(run, label)
            number = row.worst("kld_mean", highest=True)
            _error_bar(axes, bits, number, color)
            axes.plot([bits], [kld], marker=marker, color=color, linestyle="none")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel("bits a stored value")
        axes.set_ylabel("mean KL divergence, nats")
        axes.margins(x=0.12, y=0.16)
        bits_marks = [mark for mark in (1, 2, 3, 4, 6, 8, 16, 32) if points_between(points, mark)]
        axes.xaxis.set_major_locator(FixedLocator([float(mark) for mark in bits_marks]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
        _plain_log(axes)
        _label_points(axes, points)

    summary = (
        "Fewer bits to the left, less harm at the bottom. On the dashed front, where no type has both fewer bits and"
        f" less harm: {', '.join(front)}."
    )
    return Plot("kld-bits", title, summary, svg_of("kld-bits", title, summary, draw))


def points_between(points: Sequence[tuple[float, float, str]], bits: float) -> bool:
    """Whether a mark at so many bits lies among the points."""
    found = [point[0] for point in points]
    return 0.85 * min(found) <= bits <= 1.1 * max(found)


def kld_against_context(run: Run) -> Plot:
    """How the harm grows with the context."""
    title = "KL divergence against context"
    contexts = sorted({quality.ctx for row in run.rows for quality in row.quality})
    if len(contexts) < 2:
        found = f"at {contexts[0]} tokens only" if contexts else "nowhere"
        return Plot("kld-context", title, "", missing=f"measured {found}; more contexts make this plot")
    lines: dict[str, list[tuple[float, float]]] = {
        row.label: sorted(
            (
                float(ctx),
                max(q.numbers["kld_mean"].value for q in row.quality if q.ctx == ctx and "kld_mean" in q.numbers),
            )
            for ctx in contexts
            if any(q.ctx == ctx and "kld_mean" in q.numbers for q in row.quality)
        )
        for row in run.rows
    }

    def draw(axes: Axes) -> None:
        _lines(axes, run, lines)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        _token_ticks(axes, contexts)
        _plain_log(axes)
        axes.set_xlabel("context, tokens")
        axes.set_ylabel("mean KL divergence, nats")

    summary = f"Mean KL divergence at {_listed(contexts)} tokens of context; lower is better."
    return Plot("kld-context", title, summary, svg_of("kld-context", title, summary, draw))


def speed_against_depth(run: Run, side: str, title: str) -> Plot:
    """Tokens a second against the tokens in the cache. side: `pp` or `tg`."""
    name = f"{side}-depth"
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in run.rows:
        numbers = [(speed.depth, getattr(speed, side)) for speed in row.speed]
        lines[row.label] = sorted((depth, number.value) for depth, number in numbers if number is not None)
    depths = sorted({int(depth) for line in lines.values() for depth, _ in line})
    if len(depths) < 2:
        found = f"at depth {depths[0]} only" if depths else "nowhere"
        return Plot(name, title, "", missing=f"measured {found}; more depths make this plot")

    def draw(axes: Axes) -> None:
        _lines(axes, run, lines)
        axes.set_ylim(bottom=0)
        _token_ticks(axes, depths)
        axes.set_xlabel("depth, tokens in the cache before")
        axes.set_ylabel("tokens a second")

    summary = f"Medians at depths {_listed(depths)}; higher is better."
    return Plot(name, title, summary, svg_of(name, title, summary, draw))


def memory_against_context(run: Run) -> Plot:
    """Bytes of the cache against the context."""
    title = "Cache memory against context"
    trained = int(run.document.get("model", {}).get("n_ctx_train") or 0)
    longest = max(trained, 8192)
    contexts = [longest >> shift for shift in range(4, -1, -1)]
    lines = {
        row.label: [(float(ctx), size) for ctx in contexts if (size := row.bytes_at(ctx)) is not None]
        for row in run.rows
    }
    lines = {label: line for label, line in lines.items() if line}
    if not lines:
        why = "no row tells how its cache grows; `turbokv-eval memory MODEL` does"
        return Plot("memory-context", title, "", missing=why)

    def draw(axes: Axes) -> None:
        _lines(axes, run, lines)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        _token_ticks(axes, contexts)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _short_size(value)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.set_xlabel("context, tokens")

    summary = "Bytes of K and V for one sequence, from the sizes that the runs report; both axes double at each step."
    return Plot("memory-context", title, summary, svg_of("memory-context", title, summary, draw))


def _row_style(run: Run, label: str) -> tuple[Row, str, str]:
    index = run.labels.index(label)
    return run.rows[index], _SERIES[index % len(_SERIES)], _MARKERS[index % len(_MARKERS)]


def _lines(axes: Axes, run: Run, lines: dict[str, list[tuple[float, float]]]) -> None:
    for label, line in lines.items():
        if line:
            _, color, marker = _row_style(run, label)
            axes.plot(*zip(*line, strict=True), color=color, marker=marker, label=label)
    # Rows of the legend as even as they can be, of four at most.
    columns = math.ceil(len(lines) / math.ceil(len(lines) / 4))
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=columns, columnspacing=1.2, handlelength=1.6)


def _error_bar(axes: Axes, x: float, number: Number | None, color: str) -> None:
    if number is not None and number.low is not None and number.high is not None and number.low > 0:
        axes.plot([x, x], [number.low, number.high], color=color, linewidth=1.2)


def _label_points(axes: Axes, points: Sequence[tuple[float, float, str]]) -> None:
    """Labels beside the points, each where it covers least of the points and of the labels before it."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()  # the transform below is only right once the layout is
    at = {label: axes.transData.transform((bits, kld)) for bits, kld, label in points}
    scale = figure.dpi / 72
    taken = [(x - 5 * scale, y - 5 * scale, x + 5 * scale, y + 5 * scale) for x, y in at.values()]
    right = float(axes.transAxes.transform((1.06, 0))[0])
    for bits, kld, label in sorted(points, key=lambda point: at[point[2]][0]):
        x, y = at[label]
        width, height = 6.4 * len(label) * scale, 12 * scale
        places = [
            (8, 4, "left"),
            (8, -11, "left"),
            (-8, 4, "right"),
            (-8, -11, "right"),
            (0, 9, "center"),
            (0, -17, "center"),
        ]

        def box(place: tuple[int, int, str], x: float = x, y: float = y, w: float = width, h: float = height) -> _Box:
            dx, dy, align = place
            left = x + dx * scale - {"left": 0.0, "center": w / 2, "right": w}[align]
            return left, y + dy * scale, left + w, y + dy * scale + h

        def cost(place: tuple[int, int, str], box: Callable[..., _Box] = box) -> float:
            found = box(place)
            return sum(_overlap(found, other) for other in taken) + 1e4 * max(0.0, found[2] - right)

        best = min(places, key=cost)
        taken.append(box(best))
        dx, dy, align = best
        axes.annotate(
            label, (bits, kld), xytext=(dx, dy), textcoords="offset points", ha=align, fontsize=10, color=TEXT
        )


def _overlap(a: _Box, b: _Box) -> float:
    return max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))


def _token_ticks(axes: Axes, values: Sequence[int]) -> None:
    axes.xaxis.set_major_locator(FixedLocator([float(value) for value in values]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _tokens(int(value))))
    axes.xaxis.set_minor_locator(NullLocator())


def _tokens(value: int) -> str:
    return f"{value // 1024}k" if value and value % 1024 == 0 else str(value)


def _plain_log(axes: Axes) -> None:
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: ""))


def _short_size(value: float) -> str:
    number, unit = format_size(round(value)).split()
    return f"{float(number):g} {unit}"


def _listed(values: Sequence[int]) -> str:
    *most, last = map(str, values)
    return f"{', '.join(most)} and {last}" if most else last


def svg_of(name: str, title: str, summary: str, draw: Callable[[Axes], None]) -> str:
    """Draws onto new axes; the SVG with colours as variables, ids that are unique on the page, a title and a text."""
    with rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, _HEIGHT), layout="constrained")
        draw(figure.subplots())
        out = io.StringIO()
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = out.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    for color, variable in _VARIABLES.items():
        svg = svg.replace(color, f"var({variable})")
    # The page sets the font, as it does for every other text.
    svg = re.sub(r"font: ?([\d.]+px)[^;\"]*", r"font-size: \1", svg)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r"url\(#", f"url(#{name}-", svg)
    svg = re.sub(r'href="#', f'href="#{name}-', svg)
    head = re.match(r"<svg[^>]*>", svg)
    assert head is not None
    box = re.search(r'viewBox="[^"]*"', head[0])
    assert box is not None
    label = f"{name}-title {name}-desc"
    return (
        f'<svg class="plot" {box[0]} role="img" aria-labelledby="{label}" xmlns="http://www.w3.org/2000/svg"'
        f' xmlns:xlink="http://www.w3.org/1999/xlink"><title id="{name}-title">{escape(title)}</title>'
        f'<desc id="{name}-desc">{escape(summary)}</desc>{svg[head.end() :]}'
    )
