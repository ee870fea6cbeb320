"""Models as GGUF files."""

from collections.abc import Iterable
from pathlib import Path

import gguf

from .build import Model
from .catalogue import Entry


def write(model: Model, path: Path) -> None:
    """Writes one file, f32 throughout, so that weights add no rounding of their own.

    Its tokenizer is llama.cpp's `test`: five bytes of text are a token, and no vocabulary file is needed.
    """
    writer = gguf.GGUFWriter(path, model.arch)
    writer.add_name(model.name)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    for key, value in model.metadata.items():
        full = f"{model.arch}.{key}"
        if isinstance(value, list):
            writer.add_array(full, value)
        elif isinstance(value, bool):
            writer.add_bool(full, value)
        elif isinstance(value, int):
            writer.add_uint32(full, value)
        elif isinstance(value, float):
            writer.add_float32(full, value)
        else:
            writer.add_string(full, value)
    n_vocab = model.tensors["token_embd.weight"].shape[0]
    writer.add_tokenizer_model("test")
    writer.add_token_list([f"tok_{i}" for i in range(n_vocab)])
    writer.add_token_scores([0.0] * n_vocab)
    for name, tensor in model.tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_all(entries: Iterable[Entry], folder: Path) -> list[Path]:
    """Writes one file for each entry, NAME.gguf; returns their paths, in order."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for entry in entries:
        paths.append(folder / f"{entry.name}.gguf")
        write(entry.make(), paths[-1])
    return paths
