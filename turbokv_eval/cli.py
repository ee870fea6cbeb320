"""The command line, its commands in `commands/`. stdout: result; stderr: progress."""

import signal

import click

from turbokv_eval.commands import build, compare, condition, doctor, gate, lab, memory, needle, perplexity, report
from turbokv_eval.commands.command import Group


@click.group(
    cls=Group,
    examples=("turbokv-eval build && turbokv-eval compare -m MODEL.gguf -f TEXT",),
    failed="a check failed",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(package_name="turbokv-eval")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Build the turbokv fork of llama.cpp and compare its KV-cache types on your model."""
    # `kill`, or a job that runs out of time: as Ctrl-C, so that no program of a run is left behind.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    ctx.call_on_close(lambda: signal.signal(signal.SIGTERM, before))


main.add_command(build.build_command)
main.add_command(compare.compare_command)
main.add_command(compare.bench_command)
main.add_command(perplexity.perplexity_command)
main.add_command(needle.needle_command)
main.add_command(memory.memory_command)
main.add_command(condition.condition_command)
main.add_command(report.report_command)
main.add_command(gate.gate_command)
main.add_command(doctor.doctor_command)
main.add_command(lab.lab)
