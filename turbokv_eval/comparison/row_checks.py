"""Holds what a run reports of its cache against the row that it was run for."""

from typing import Any

from turbokv_eval.comparison.settings import Settings
from turbokv_eval.models.types import KVConfig
from turbokv_eval.programs import kv_log

# Two ways to count the same bits: printed sizes have two decimals.
_BITS_TOLERANCE = 0.02


def problems(settings: Settings, config: KVConfig, reports: list[kv_log.KVReport]) -> list[str]:
    """How a row's run differs from what was asked for: its cache, and where that is."""
    found = kv_log.problems(config, True, reports, settings.n_layer)
    if settings.gpu_layers and any(set(report.devices) <= {"CPU"} for report in reports):
        found.append(
            f"{settings.gpu_layers} layers were asked onto a GPU, and the cache was in the CPU's memory: is it a GPU"
            f" build, and does the driver see the device? `turbokv-eval doctor` tells"
        )
    return found


def take_report(settings: Settings, config: KVConfig, row: dict[str, Any], report: kv_log.KVReport) -> None:
    """Writes the cache of a run into its row, and what is wrong with it."""
    row["errors"] += problems(settings, config, [report])
    row["kv"] = report.as_dict()
    bits = kv_log.bits_per_value(report, settings.model)
    row["bits_per_value"] = None if bits is None else round(bits, 4)
    logged = kv_log.logged_bits(report)
    if bits is not None and logged is not None and abs(bits / logged - 1) > _BITS_TOLERANCE:
        row["errors"].append(f"the run reports {logged:.3f} bits a value, but its bytes make {bits:.3f}")
