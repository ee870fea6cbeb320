"""The group `turbokv-eval lab`."""

import click

from turbokv_eval.lab.attention_cli import attention_command, capture_command


@click.group("lab")
def lab() -> None:
    """Quantisers of the field, measured on real attention.

    \b
    Example:
      turbokv-eval lab capture MODEL.gguf -f TEXT -o MODEL.capture.gguf
      turbokv-eval lab attention MODEL.capture.gguf
    """


lab.add_command(capture_command)
lab.add_command(attention_command)
