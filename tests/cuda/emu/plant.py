#!/usr/bin/env python3
"""Plants a fault in a copy of a source: plant.py SOURCE TARGET OLD NEW [N]. The N-th OLD (from 1) must exist."""

import sys
from pathlib import Path


def main() -> None:
    source, target, old, new = sys.argv[1:5]
    n = int(sys.argv[5]) if len(sys.argv) > 5 else 1
    text = Path(source).read_text()
    at = -1
    for _ in range(n):
        at = text.find(old, at + 1)
        if at < 0:
            raise SystemExit(f"plant.py: {source} has no occurrence {n} of: {old}")
    planted = text[:at] + new + text[at + len(old) :]
    out = Path(target)
    out.parent.mkdir(parents=True, exist_ok=True)
    if not out.is_file() or out.read_text() != planted:
        out.write_text(planted)


if __name__ == "__main__":
    main()
