"""Makes GGUF files with the metadata of any architecture and one small tensor."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np


def write_metadata(path: Path, arch: str, **own: Any) -> Path:
    """`own`: keys of the architecture, `__` for a dot: attention__head_count=4."""
    writer = gguf.GGUFWriter(path, arch)
    for name, value in own.items():
        key = f"{arch}.{name.replace('__', '.')}"
        if isinstance(value, Sequence) and not isinstance(value, str):
            writer.add_array(key, list(value))
        elif isinstance(value, float):
            writer.add_float32(key, value)
        else:
            writer.add_uint32(key, value)
    writer.add_token_list([f"token {i}" for i in range(50)])
    writer.add_tensor("token_embd.weight", np.zeros((4, 8), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
