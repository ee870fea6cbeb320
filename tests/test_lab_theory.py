"""`turbokv-eval lab theory` and `lab methods`."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from turbokv_eval.cli import main
from turbokv_eval.lab import theory
from turbokv_eval.lab.registry import METHODS

QUICK = ("lab", "theory", "--dims", "64,80", "--bits", "1,3", "--draws", "6", "--rows", "100")


def run(*args: str) -> Any:
    return CliRunner().invoke(main, list(args))


def test_json_is_the_record_and_the_table_shows_it() -> None:
    result = run(*QUICK, "-o", "json")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert (document["kind"], document["broken"]) == ("lab-theory", [])
    rows = {(row["method"], row["bits"], row["d"]): row for row in document["distortion"]}
    assert len(rows) == 3 * 2 * 2
    mse = rows["turboquant_mse", 3, 80]
    assert mse["mse"]["low"] < mse["mse"]["mean"] < mse["mse"]["high"]
    assert mse["mse"]["mean"] == pytest.approx(0.0336, rel=0.05)
    assert (mse["lower"], mse["mse_paper"]) == (4**-3, 0.03)
    assert mse["mse_bound"] == pytest.approx(3**0.5 * np.pi / 2 / 64)
    prod = rows["turboquant_prod", 3, 80]
    assert prod["ip_bound"] == pytest.approx(3**0.5 * np.pi**2 / 64)
    assert prod["ip_sharp_bound"] == pytest.approx(np.pi / 2 * 0.1151, rel=1e-3)
    others = {(row["method"], row["d"]) for row in document["others"]}
    assert ("q4_0", 64) in others
    assert ("q4_0", 80) not in others  # no blocks of 32 in 80 values
    table = run(*QUICK).stdout
    assert f"{mse['mse']['mean']:.5f}" in table
    assert "polarquant-4.2" in table


def test_a_broken_claim_fails_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(theory, "prod_bound", lambda bits: 0.1 * 4.0**-bits)
    result = run(*QUICK)
    assert result.exit_code == 1
    assert "broken: turboquant_prod at 3 bits, d = 64: the inner product's error" in result.stdout
    assert "claims contradicted" in result.stderr


def test_an_interval_covers_the_mean_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    found = [theory.interval(rng.standard_normal(5)) for _ in range(2000)]
    share = sum(i["low"] < 0 < i["high"] for i in found) / 2000
    assert share == pytest.approx(theory.CONFIDENCE, abs=0.015)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--dims", "64,x"), "is not a list of whole numbers"),
        (("--dims", "64,64"), "one twice"),
        (("--dims", "3"), "head dimension of 3 is too small"),
        (("--bits", "9"), "bits must be 1 to 8"),
        (("--draws", "1"), "1 is not in the range"),
    ],
)
def test_bad_options_are_one_line(args: tuple[str, ...], message: str) -> None:
    result = run("lab", "theory", *args)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""


def test_methods_are_listed() -> None:
    _, _, *lines = run("lab", "methods").stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(METHODS)
    assert [row["name"] for row in json.loads(run("lab", "methods", "-o", "json").stdout)] == list(METHODS)


def test_help_does_not_load_the_laboratory() -> None:
    code = (
        "import sys, turbokv_eval.cli; sys.exit('turbokv_eval.lab.registry' in sys.modules or 'scipy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
