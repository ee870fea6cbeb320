"""The commands `lab capture` and `lab attention`. Bodies import what they need: SciPy takes a second."""

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from turbokv_eval.commands.command import PATH, Command, bin_option, form_option, threads_option
from turbokv_eval.comparison import preflight
from turbokv_eval.errors import BadInput, CheckFailed
from turbokv_eval.machine import build, provenance
from turbokv_eval.models.gguf_info import read_model
from turbokv_eval.progress import meter


@click.command(
    "capture",
    cls=Command,
    examples=(
        "turbokv-eval lab capture MODEL.gguf -f TEXT -o MODEL.capture.gguf",
        "turbokv-eval lab attention MODEL.capture.gguf",
    ),
    failed="the program wrote no file",
    cannot="the program is not built",
)
@click.argument("model", type=PATH)
@click.option("-f", "--file", "text", type=PATH, required=True, help="Plain text to run through the model.")
@click.option("-o", "--output", type=PATH, required=True, help="The file to write, a GGUF.")
@click.option("--layers", metavar="LIST", help="Such as 0,5,-1.  [default: 8, spread evenly]")
@click.option("--ctx", "-c", type=click.IntRange(min=64), help="Tokens.  [default: 2048 or all of the text]")
@click.option("--flash-attn", is_flag=True, help="With flash attention; the cache is f32 either way.")
@click.option("--full", is_flag=True, help="Queries and values as f32 and not f16.")
@click.option("--pre-rope", is_flag=True, help="The keys before RoPE too.")
@threads_option
@bin_option
def capture_command(
    model: Path,
    text: Path,
    output: Path,
    layers: str | None,
    threads: int | None,
    bin_dir: Path | None,
    **options: Any,
) -> None:
    """Queries, keys and values of a real model, as its attention sees them, in one file."""
    from turbokv_eval.lab import capture

    info = read_model(model)
    preflight.check_text(text, 64)
    wanted = capture.parse_layers(layers) if layers else capture.spread_layers(info)
    request = capture.Request(wanted, **options)
    made = capture.make(bin_dir or build.default_bin(), model, text, output, request, threads or provenance.cpu_count())
    click.echo(made)


@click.command(
    "attention",
    cls=Command,
    examples=(
        "turbokv-eval lab attention MODEL.capture.gguf --plot pareto.svg",
        "turbokv-eval lab attention MODEL.capture.gguf --side keys -o csv",
    ),
    failed="no method could be measured",
)
@click.argument("file", metavar="CAPTURE", type=PATH)
@click.option(
    "--methods",
    metavar="LIST",
    help="Names or patterns such as 'turbo-*'; NAME@pre: keys before RoPE.  [default: 2 to 4.5 bits, no ablations]",
)
@click.option("--side", type=click.Choice(["keys", "values", "both"]), default="both", show_default=True)
@click.option("--baseline", metavar="LIST", help="One for each half bit.  [default: plain rotation]")
@click.option("--calibrate", type=PATH, metavar="CAPTURE", help="Fit on this one.  [default: the first half]")
@click.option("--layers", metavar="LIST", help="Of those in the capture.  [default: all]")
@click.option("--queries", type=click.IntRange(min=1), default=256, show_default=True, help="Of each head.")
@click.option("--block", type=click.IntRange(min=1), default=16, show_default=True, help="Consecutive queries.")
@click.option("--window", type=click.IntRange(min=0), default=0, show_default=True, help="Recent tokens kept as f16.")
@click.option("--sinks", type=click.IntRange(min=0), default=0, show_default=True, help="First tokens kept as f16.")
@form_option
@click.option("--plot", type=PATH, metavar="FILE", help="The Pareto plot, .svg or .png.")
def attention_command(
    file: Path,
    methods: str | None,
    side: str,
    baseline: str | None,
    calibrate: Path | None,
    layers: str | None,
    form: str,
    plot: Path | None,
    **numbers: int,
) -> None:
    """What each quantiser does to the attention of a capture, at its true bits per value."""
    from turbokv_eval.lab import attention, attention_report, capture, plots
    from turbokv_eval.lab.registry import METHODS

    settings = attention.Settings(**numbers)
    found = capture.read_capture(file)
    other = None if calibrate is None else capture.read_capture(calibrate)
    chosen = found.select(capture.parse_layers(layers) if layers else None)
    sides = attention.SIDES if side == "both" else (side,)
    by_side = {s: _named(methods, "--methods") if methods else _default(s) for s in sides}
    wanted = _named(baseline, "--baseline") if baseline else BASELINES
    if plot is not None:
        plots.check_plot(plot)
    with meter(Console(stderr=True)) as show:
        rows, failed = attention.measure(
            found, chosen, by_side, METHODS, settings, other, lambda part, what: show.update(part, 1.0, what)
        )
    document = attention.document(found, chosen, rows, failed, wanted, settings, other)
    if plot is not None:
        plots.save_pareto(document, plot)
    click.echo(attention_report.FORMS[form](document), nl=False)
    if not rows:
        raise CheckFailed(f"no method could be measured: {next(iter(failed.values()), 'none was named')}")


# Plain rotation at each rate: what the fork stores without conditioning.
BASELINES = ("turbo-2", "half_channels-2.5", "turbo-3", "half_channels-3.5", "turbo-4")
# Nominal bits of what is measured unless methods are named.
RATES = (2.0, 4.5)
# Of the registry's families: ablations, and what takes minutes.
ON_DEMAND = {"lloyd", "uniform", "block2", "block4", "turboquant_mse_log8", "equalised_turbo", "trellis4096"}
# Maps that need queries, or that move the mean: of no use to values (docs/lab.md).
KEYS_ONLY = ("centre/", "equalise/", "condition/", "balanced/", "kivi_keys", "kvquant_keys")
VALUES_ONLY = ("kivi_values",)


def _default(side: str) -> list[str]:
    """Names of what is measured on this side."""
    from turbokv_eval.lab.registry import FAMILIES

    families = [family for name, family in FAMILIES.items() if name not in ON_DEMAND]
    names = [family(rate).name for family in families for rate in family.rates if RATES[0] <= rate <= RATES[1]]
    return [name for name in names if not name.startswith(VALUES_ONLY if side == "keys" else KEYS_ONLY)]


def _named(spec: str, option: str) -> list[str]:
    """Names and patterns of METHODS, with or without the suffix of keys before RoPE; each name once."""
    from turbokv_eval.lab.attention import PRE_ROPE
    from turbokv_eval.lab.registry import METHODS

    names: dict[str, None] = {}
    for part in (part.strip() for part in spec.split(",")):
        suffix = PRE_ROPE if part.endswith(PRE_ROPE) else ""
        found = [name for name in METHODS if fnmatchcase(name, part.removesuffix(PRE_ROPE))]
        if not found:
            raise BadInput(f"{option}: there is no method {part!r}; `turbokv-eval lab methods` lists them")
        names.update(dict.fromkeys(name + suffix for name in found))
    return list(names)
