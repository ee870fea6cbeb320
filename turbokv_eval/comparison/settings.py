"""What a comparison is asked for."""

from dataclasses import dataclass
from pathlib import Path

from turbokv_eval.comparison.needle import Plan as NeedlePlan
from turbokv_eval.comparison.trajectory import Plan as TrajectoryPlan
from turbokv_eval.models.gguf_info import ModelInfo
from turbokv_eval.models.types import KVConfig

# A depth costs its prompt in every round, minutes on a small machine: 3 rounds up to this depth, else 1.
_DEEP = 1024
_ROUNDS = 3


@dataclass(frozen=True)
class Settings:
    """What to compare.

    texts:  none when nothing that reads one is asked for.
    contexts: tokens of a chunk; every text is scored at every context.
    depths: tokens in the cache before a speed test.
    trajectory, needle: None: not measured.
    max_kld, budget: limits of the recommendation, in nats and bytes.
    rounds: None for the default of each depth.
    model_sha256: what the model must have; None: anything.
    n_layer: layers of the model that types of single layers count by; 0 when no row has such.
    gpu_layers: as `-ngl`; None: the programs decide. Above 0, a cache that is only in the CPU's memory fails its row.
    """

    configs: tuple[KVConfig, ...]
    model: ModelInfo
    texts: tuple[Path, ...]
    bin_dir: Path
    contexts: tuple[int, ...] = (512,)
    chunks: int = 12
    threads: int = 1
    depths: tuple[int, ...] = (0, 4096)
    rounds: int | None = None
    repetitions: int = 2
    quality: bool = True
    speed: bool = True
    trajectory: TrajectoryPlan | None = None
    needle: NeedlePlan | None = None
    max_kld: float = 0.1
    budget: int | None = None
    gpu_layers: int | None = None
    model_sha256: str | None = None
    n_layer: int = 0

    @property
    def placement(self) -> list[str]:
        """Where the layers go: arguments that every program takes."""
        return [] if self.gpu_layers is None else ["-ngl", str(self.gpu_layers)]

    @property
    def evaluations(self) -> list[tuple[int, int]]:
        """(number of the text, context) of every measurement of quality, in the order in which they are made."""
        return [(text, ctx) for text in range(len(self.texts)) for ctx in self.contexts] if self.quality else []

    def rounds_at(self, depth: int) -> int:
        """Rounds of speed at a depth of that many tokens."""
        return self.rounds or (_ROUNDS if depth <= _DEEP else 1)

    def speed_rounds(self) -> list[list[tuple[int, int]]]:
        """What each type runs in each round, before the next type does: (depth, number of the round at that depth).

        All depths of a type follow each other, as their differences are taken: a machine that becomes slower or faster
        within minutes then does so for both. A depth with fewer rounds than another has them in the middle.
        """
        most = max(map(self.rounds_at, self.depths), default=0)
        first = {depth: (most - self.rounds_at(depth)) // 2 for depth in self.depths}
        return [
            [(depth, at - first[depth]) for depth in self.depths if 0 < at - first[depth] <= self.rounds_at(depth)]
            for at in range(1, most + 1)
        ]
