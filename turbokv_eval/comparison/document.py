"""The document of a comparison before anything was measured; `results.schema` has its form."""

from collections.abc import Sequence
from typing import Any

from turbokv_eval.comparison.settings import Settings
from turbokv_eval.machine import file_hash, provenance
from turbokv_eval.machine.assets import sha256_file
from turbokv_eval.programs import bench, generate, perplexity
from turbokv_eval.results import chunk_statistics, schema


def blank(settings: Settings, command: Sequence[str]) -> dict[str, Any]:
    """Settings, model, text, build and machine, and a pending row for each cache type. command: as it was called."""
    model = settings.model
    return {
        "schema_version": schema.VERSION,
        "tool": "turbokv-eval compare",
        "status": "running",
        "started": provenance.now(),
        "finished": None,
        "command": list(command),
        "settings": {
            "types": [config.label for config in settings.configs],
            "contexts": list(settings.contexts),
            "chunks": settings.chunks,
            "threads": settings.threads,
            "depths": list(settings.depths),
            "rounds": {str(depth): settings.rounds_at(depth) for depth in settings.depths},
            "repetitions": settings.repetitions,
            "n_prompt": bench.N_PROMPT,
            "n_gen": bench.N_GEN,
            "quality": settings.quality,
            "speed": settings.speed,
            "trajectory": settings.trajectory and settings.trajectory.document(),
            "needle": settings.needle and settings.needle.document(),
            "max_kld": settings.max_kld,
            "budget": settings.budget,
            "gpu_layers": settings.gpu_layers,
        },
        "model": {
            "path": str(model.path),
            "file": model.path.name,
            "name": model.name,
            "arch": model.arch,
            "bytes": model.size,
            # a hash that was given is checked against the file, not against what is remembered of it
            "sha256": file_hash.model_sha256(model.path, trust=settings.model_sha256 is None),
            "n_ctx_train": model.n_ctx_train,
            "head_count": model.head_count,
            "head_count_kv": list(model.head_count_kv),
            "key_length": model.key_length,
            "value_length": model.value_length,
        },
        "texts": [
            {"path": str(text), "file": text.name, "bytes": text.stat().st_size, "sha256": sha256_file(text)}
            for text in settings.texts
        ],
        "build": provenance.build(settings.bin_dir, (perplexity.PROGRAM, generate.PROGRAM)),
        "family": [list(pair) for pair in chunk_statistics.family([config.label for config in settings.configs])],
        "recommendation": None,
        "host": provenance.host(),
        "versions": provenance.versions(),
        "notes": [],
        "evaluations": [
            {"text": text, "ctx": ctx, "reference": None, "noise_floor": None, "differences": []}
            for text, ctx in settings.evaluations
        ],
        "trajectory": None,
        "needle": [],
        "rows": [
            {
                "label": config.label,
                "k": config.k,
                "v": config.v,
                "condition": config.condition or "auto",
                "layers": config.layers,
                "status": "pending",
                "errors": [],
                "kv": None,
                "bits_per_value": None,
                "quality": [],
                "speed": [],
                "trajectory": None,
                "needle": [],
                "rss_bytes": None,
                "commands": [],
            }
            for config in settings.configs
        ],
    }
