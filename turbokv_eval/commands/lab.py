"""The group `turbokv-eval lab`. Command bodies import what they need, so that `turbokv-eval --help` stays fast."""

import json

import click
from rich.console import Console

from turbokv_eval.commands.command import Command, Group, Numbers, form_option
from turbokv_eval.commands.lab_attention import attention_command, capture_command
from turbokv_eval.errors import CheckFailed
from turbokv_eval.output import tabular
from turbokv_eval.progress import meter


@click.group(
    "lab",
    cls=Group,
    examples=(
        "turbokv-eval lab theory",
        "turbokv-eval lab methods",
        "turbokv-eval lab capture MODEL.gguf -f TEXT -o MODEL.capture.gguf",
        "turbokv-eval lab attention MODEL.capture.gguf",
    ),
    failed="a check failed",
)
def lab() -> None:
    """Quantisers of the field in NumPy, measured side by side."""


lab.add_command(capture_command)
lab.add_command(attention_command)


@lab.command(
    "theory",
    cls=Command,
    examples=("turbokv-eval lab theory --dims 128 -o json",),
    failed="a claim of the paper is contradicted",
)
@click.option("--dims", type=Numbers("64,128", least=1), help="Head dimensions.  [default: 64,80,96,128,256]")
@click.option("--bits", type=Numbers("2,3", least=1), help="Bits a value, 1 to 8.  [default: 1,2,3,4]")
@click.option("--draws", type=click.IntRange(min=2), help="Rotations and sketches at each dimension.  [default: 40]")
@click.option("--rows", type=click.IntRange(min=1), help="Vectors for each of them.  [default: 400]")
@click.option("--seed", type=click.IntRange(min=0), help="[default: 0]")
@form_option
def theory_command(form: str, **chosen: tuple[int, ...] | int | None) -> None:
    """Distortion of the codes on random vectors, against the bounds and the figures of the TurboQuant paper.

    No model is needed.
    """
    from turbokv_eval.lab import theory, theory_report

    settings = theory.Settings(**{name: value for name, value in chosen.items() if value is not None})  # type: ignore[arg-type]
    with meter(Console(stderr=True)) as show:
        document = theory.measure(settings, show.update)
    click.echo(theory_report.FORMS[form](document), nl=False)
    if document["broken"]:
        raise CheckFailed(f"{len(document['broken'])} claims contradicted: {document['broken'][0]}")


@lab.command("methods", cls=Command, examples=("turbokv-eval lab methods",))
@form_option
def methods_command(form: str) -> None:
    """The methods that the other commands take by name, with what they are."""
    from turbokv_eval.lab.registry import FAMILIES

    found = [
        {"name": family(rate).name, "bits": rate, "summary": family.summary}
        for family in FAMILIES.values()
        for rate in family.rates
    ]
    if form == "json":
        click.echo(json.dumps(found, indent=1))
        return
    columns = ("name", "bits", "summary")
    table = tabular.Table("", columns, [[str(row[column]) for column in columns] for row in found])
    table.left = frozenset(("summary",))
    click.echo(table.rendered(form), nl=False)
