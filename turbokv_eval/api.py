"""The comparison from Python: `from turbokv_eval import compare, KVConfig`. The command line calls it too."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from turbokv_eval.comparison import preflight, store
from turbokv_eval.comparison.needle import Plan as NeedlePlan
from turbokv_eval.comparison.needle import haystack_tokens
from turbokv_eval.comparison.run import Comparison
from turbokv_eval.comparison.settings import Settings
from turbokv_eval.comparison.trajectory import Plan as TrajectoryPlan
from turbokv_eval.errors import BadInput
from turbokv_eval.machine import assets, build, provenance
from turbokv_eval.models import kv_layers
from turbokv_eval.models.gguf_info import read_model
from turbokv_eval.models.kv_layout import layer_count
from turbokv_eval.models.types import KVConfig, parse_types
from turbokv_eval.output import report
from turbokv_eval.programs import generate
from turbokv_eval.progress import Meter, Silent, meter
from turbokv_eval.results import reader

DEFAULT_TYPES = "f16,q8_0,q4_0,turbo4,turbo3,turbo3@off,turbo2"


def compare(
    model: Path | str | None = None,
    types: str | Sequence[str | KVConfig] = DEFAULT_TYPES,
    *,
    text: Path | str | Sequence[Path | str] | None = None,
    ctx: int | Sequence[int] = 512,
    chunks: int = 12,
    depths: Sequence[int] = (0, 4096),
    rounds: int | None = None,
    repetitions: int = 2,
    quality: bool = True,
    speed: bool = True,
    trajectory: bool = True,
    needle: bool = True,
    needle_contexts: Sequence[int] = NeedlePlan().contexts,
    threads: int | None = None,
    gpu_layers: int | None = None,
    max_kld: float = 0.1,
    budget: int | None = None,
    run: Path | str = "turbokv-compare",
    bin_dir: Path | str | None = None,
    model_sha256: str | None = None,
    progress: bool = False,
) -> reader.Run:
    """Compares KV-cache types on a model, as `turbokv-eval compare` does; takes up a run of the same folder again.

    Example::

        from turbokv_eval import KVConfig, compare
        found = compare("model.gguf", ["f16", "turbo3", KVConfig("q8_0", "turbo3")], text="text.txt", run="out")
        print(found.recommendation, found.row("turbo3").quality[0].numbers["kld_mean"].value)

    model, text: files; None: the small model and the text of the command line, downloaded once. Several texts and
                 contexts: every text is scored at every context.
    types:       names as `--types` takes them, in one string or one each, or KVConfig.
    ctx, chunks: tokens of a chunk and how many of them are scored.
    depths:      tokens in the cache before a speed test; rounds at each of them, None: 3 up to depth 1024, else 1;
                 repetitions in a round.
    trajectory, needle: how far greedy texts agree with the reference's, and whether planted facts are found, in
                 contexts of so many tokens; both only with quality.
    gpu_layers:  as `-ngl`; None: the programs decide.
    max_kld, budget: limits of the recommendation, in nats and bytes.
    run:         folder of compare.json, compare.txt, the logs, and what is needed to take the run up again.
    bin_dir:     folder of the programs; None: where `turbokv-eval build` leaves them.
    model_sha256: hexadecimal; a model with another hash is refused.
    progress:    whether to tell on stderr how far it is.

    Returns the run, failed rows included: look at `status` and at `errors` of a row. Raises BadInput, MachineCannot or
    CheckFailed (`turbokv_eval.errors`), each with one line that names the cause and the way out.
    """
    if not quality and not speed:
        raise BadInput("neither quality nor speed leaves nothing to do: ask for one")
    configs = types if isinstance(types, str) else ",".join(c if isinstance(c, str) else c.label for c in types)

    def measure(show: Meter) -> reader.Run:
        chosen = settings(
            show,
            model=None if model is None else Path(model),
            types=configs,
            texts=tuple(map(Path, [text] if isinstance(text, str | Path) else text or ())),
            contexts=(ctx,) if isinstance(ctx, int) else tuple(ctx),
            chunks=chunks,
            depths=tuple(depths),
            rounds=rounds,
            repetitions=repetitions,
            quality=quality,
            speed=speed,
            trajectory=TrajectoryPlan() if quality and trajectory else None,
            needle=NeedlePlan(contexts=tuple(needle_contexts)) if quality and needle else None,
            threads=threads,
            gpu_layers=gpu_layers,
            max_kld=max_kld,
            budget=budget,
            bin_dir=None if bin_dir is None else Path(bin_dir),
            model_sha256=model_sha256,
        )
        with store.opened(Path(run)) as opened:
            document = Comparison(chosen, opened, show, ["turbokv_eval.compare"]).run()
            opened.save_table(report.as_text(document))
            return reader.load(opened.json)

    if not progress:
        return measure(Silent())
    with meter(Console(stderr=True)) as show:
        return measure(show)


def settings(
    show: Meter,
    *,
    model: Path | None,
    types: str,
    texts: tuple[Path, ...],
    contexts: tuple[int, ...],
    chunks: int,
    depths: tuple[int, ...],
    rounds: int | None,
    repetitions: int,
    quality: bool,
    speed: bool,
    trajectory: TrajectoryPlan | None,
    needle: NeedlePlan | None,
    threads: int | None,
    gpu_layers: int | None,
    max_kld: float,
    budget: int | None,
    bin_dir: Path | None,
    model_sha256: str | None,
) -> Settings:
    """Checks everything that can be checked before the long runs. Raises as `compare`."""
    folder = bin_dir or build.default_bin()
    reads_text = quality or trajectory is not None or needle is not None
    preflight.check_programs(folder, *([generate.PROGRAM] if trajectory or needle else ()))
    configs = parse_types(types, preflight.known_types(folder))
    if not reads_text:
        texts = ()
    if needle:
        for ctx in needle.contexts:
            haystack_tokens(needle, ctx)
    for ctx in contexts if quality else ():
        preflight.check_values(ctx, chunks)
    for text in texts:
        preflight.check_text(text, max(contexts) if quality else 0)
    info = read_model(model or assets.fetch(assets.MODEL, show.say))
    if reads_text and not texts:
        texts = (assets.fetch(assets.TEXT, show.say),)
        preflight.check_text(texts[0], max(contexts) if quality else 0)
    n_layer = layer_count(info.path) if any(config.layers for config in configs) else 0
    for config in configs:
        kv_layers.check(config.rules, n_layer)
    return Settings(
        configs=tuple(configs),
        model=info,
        texts=texts,
        bin_dir=folder,
        contexts=contexts,
        chunks=chunks,
        threads=threads or provenance.cpu_count(),
        depths=depths,
        rounds=rounds,
        repetitions=repetitions,
        quality=quality,
        speed=speed,
        trajectory=trajectory,
        needle=needle,
        max_kld=max_kld,
        budget=budget,
        gpu_layers=gpu_layers,
        model_sha256=model_sha256,
        n_layer=n_layer,
    )
