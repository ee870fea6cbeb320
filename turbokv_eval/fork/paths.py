"""Where the fork's parts lie: in a checkout, or inside an installed wheel."""

from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_dir

from turbokv_eval.errors import BadInput

_PACKAGE = Path(__file__).resolve().parents[1]
_APP = "turbokv"


@dataclass(frozen=True)
class Layout:
    """The folders the tool reads and writes.

    source: holds UPSTREAM, patches/ and overlay/.
    build:  the tree is materialised into `build/llama.cpp`.
    cache:  holds the downloaded sdist; shared by all checkouts of a user.
    """

    source: Path
    build: Path
    cache: Path

    @property
    def tree(self) -> Path:
        """The materialised llama.cpp."""
        return self.build / "llama.cpp"

    @property
    def patches(self) -> Path:
        """The series of patches."""
        return self.source / "patches"

    @property
    def overlay(self) -> Path:
        """The files that the fork adds."""
        return self.source / "overlay"

    @classmethod
    def default(cls) -> "Layout":
        """The layout of a checkout, or that of an installed package, which builds in the user's cache folder."""
        root = repo_root()
        cache = Path(user_cache_dir(_APP, appauthor=False))
        # A wheel lies in site-packages, which may be read-only and is no place for a build.
        build = cache / "build" if root.is_relative_to(_PACKAGE) else root / "build"
        return cls(source=root / "llama.cpp", build=build, cache=cache / "sdist")


def repo_root() -> Path:
    """The folder that holds `llama.cpp/UPSTREAM`: the checkout, else the copy inside the installed package."""
    for root in (_PACKAGE.parent, _PACKAGE / "_fork"):
        if (root / "llama.cpp" / "UPSTREAM").is_file():
            return root
    raise BadInput(f"llama.cpp/UPSTREAM is neither in {_PACKAGE.parent} nor in the installed package: reinstall it")
