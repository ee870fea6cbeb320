"""What the NVIDIA driver says of this machine."""

import shutil
import subprocess
from dataclasses import dataclass

_FIELDS = ("name", "driver_version", "compute_cap")


@dataclass(frozen=True)
class Card:
    """name and driver as the driver spells them; architecture: 90 for compute capability 9.0."""

    name: str
    driver: str
    architecture: int


def cards() -> list[Card]:
    """The cards that the driver knows; none where there is no driver or it answers otherwise."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    query = [tool, f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    found = []
    for line in done.stdout.splitlines() if done.returncode == 0 else ():
        fields = [field.strip() for field in line.split(",")]
        capability = fields[-1].replace(".", "")
        if len(fields) == len(_FIELDS) and capability.isdigit():
            found.append(Card(fields[0], fields[1], int(capability)))
    return found
