"""Intervals cover the truth as often as they say, and Holm keeps the error of the family."""

import numpy as np
import pytest
from compare_world import recorded

from turbokv_eval.programs import perplexity
from turbokv_eval.results import paired


def test_intervals_cover_the_truth_in_93_to_97_percent_of_paired_experiments() -> None:
    rng = np.random.default_rng(1)
    covered = 0
    for seed in range(1000):
        chunk = rng.gamma(4, 0.01, 12)
        difference = (chunk + rng.normal(0.02, 0.004, 12)) - chunk
        found = paired.interval(difference, seed=seed)
        assert found is not None
        covered += found[0] <= 0.02 <= found[1]
    assert 930 <= covered <= 970


def test_holm_controls_the_family_error() -> None:
    rng = np.random.default_rng(2)
    wrong = plain = 0
    for _ in range(300):
        p = [paired.permutation_p(rng.normal(0, 1, 9)) for _ in range(5)]
        wrong += min(paired.holm(p)) < 0.05
        plain += min(p) < 0.05
    assert wrong <= 0.08 * 300
    assert plain > 0.15 * 300  # so the test would see a missing correction


def test_holm_by_hand() -> None:
    assert paired.holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])


def test_chunks_come_back_from_running_means_within_the_stated_error() -> None:
    truth = np.random.default_rng(3).gamma(2, 0.02, 12)
    running = [round(float(truth[: k + 1].mean()), 5) for k in range(12)]
    found, error = paired.per_chunk(running, 5)
    assert np.abs(found - truth).max() <= error


def test_chunks_of_a_recorded_run_have_its_mean() -> None:
    ratios, klds = perplexity.running_means(recorded("quality-q8_0-turbo3.log"))
    assert len(ratios) == len(klds) == 4
    found, _ = paired.per_chunk(klds, 5)
    assert found.mean() == pytest.approx(0.022344, abs=1e-5)


def test_a_large_difference_is_shown_and_none_is_not() -> None:
    assert paired.permutation_p(np.full(12, 0.1)) == pytest.approx(2 / 4096)
    assert paired.permutation_p(np.zeros(12)) == 1.0
