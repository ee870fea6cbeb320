"""python -m zoo DIR [NAME...]: writes the models, or those named."""

import sys
from pathlib import Path

from .catalogue import entries
from .write import write_all


def main() -> int:
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    known = {entry.name: entry for entry in entries()}
    names = sys.argv[2:] or list(known)
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"error: no model {unknown[0]!r}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    for path in write_all([known[name] for name in names], Path(sys.argv[1])):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
