"""`python -m turbokv_eval` is `turbokv-eval`."""

from turbokv_eval.cli import main

main(prog_name="turbokv-eval")
