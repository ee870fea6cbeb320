"""Metadata of a GGUF file and the list of its tensors, in milliseconds: what a KV cache is computed from.

The `gguf` package reads every token of the vocabulary into arrays, which takes seconds on large ones.
"""

import mmap
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turbokv_eval.errors import BadInput

# GGUF value types (ggml/docs/gguf.md): number -> struct format. 8 is a string, 9 an array.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9

# Of the tensors' data, where `general.alignment` does not say.
_ALIGNMENT = 32

# Longer arrays (vocabularies) are of no use here; an array of one value a layer is far shorter.
_LONGEST = 4096

Value = str | int | float | bool | list[Any]


class Skipped(list[Any]):
    """Stands for an array that was not read. length: its elements."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length


@dataclass(frozen=True)
class Tensor:
    """An entry of the list of tensors.

    shape: in ggml's order, the length of a row first. type: the number of a ggml type. start: the byte in the file.
    """

    name: str
    shape: tuple[int, ...]
    type: int
    start: int


class Metadata(Mapping[str, Value]):
    """The key-value pairs of one model, whatever the number of its files.

    size:    bytes of all its files together, which is about what its weights take in memory.
    tensors: those of the file that was read.
    """

    def __init__(self, path: Path, pairs: dict[str, Value], tensors: tuple[Tensor, ...], size: int) -> None:
        self.path = path
        self.size = size
        self.tensors = tensors
        self._pairs = pairs

    def __getitem__(self, key: str) -> Value:
        return self._pairs[key]

    def __iter__(self) -> Any:
        return iter(self._pairs)

    def __len__(self) -> int:
        return len(self._pairs)

    @property
    def arch(self) -> str:
        """`general.architecture`. Raises BadInput."""
        arch = self.get("general.architecture")
        if not isinstance(arch, str):
            raise BadInput(f"{self.path} names no architecture: it is not a language model; give a GGUF model")
        return arch

    def own(self, key: str) -> str:
        """The full name of a key of this architecture: `llama.` + key."""
        return f"{self.arch}.{key}"

    def number(self, key: str, default: int | None = None) -> int:
        """A whole number of this architecture; `key` without the architecture. Raises BadInput when it has none."""
        value = self.get(self.own(key), default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int):
            what = "has no" if value is None else f"has {value!r} as"
            raise BadInput(f"{self.path} {what} {self.own(key)}, a whole number: its metadata are not complete")
        return int(value)

    def per_layer(self, key: str, layers: int, default: Sequence[int] | None = None) -> tuple[int, ...]:
        """One number for each of `layers`, whether the file has an array or one number for all. Raises BadInput."""
        value = self.get(self.own(key))
        if value is None and default is not None:
            return tuple(default)
        if isinstance(value, list):
            if len(value) < layers:
                raise BadInput(f"{self.path}: {self.own(key)} has {len(value)} values for {layers} layers")
            return tuple(int(number) for number in value[:layers])
        return (self.number(key),) * layers


def read(path: Path) -> Metadata:
    """Metadata of a GGUF file, or of a model of several files of which `path` is the first.

    Raises BadInput for what is missing, damaged or no GGUF file.
    """
    pairs, tensors = _read_one(path)
    count = pairs.get("split.count", 1)
    size = path.stat().st_size
    if isinstance(count, int) and count > 1:
        size = sum(part.stat().st_size for part in _parts(path, count))
    return Metadata(path, pairs, tensors, size)


def _parts(path: Path, count: int) -> list[Path]:
    """The files of a split model, named as llama-gguf-split names them."""
    end = f"-00001-of-{count:05d}.gguf"
    if not path.name.endswith(end):
        raise BadInput(f"{path} is one of {count} parts of a model: give the first, whose name ends in {end}")
    parts = [path.with_name(path.name.removesuffix(end) + f"-{n:05d}-of-{count:05d}.gguf") for n in range(1, count + 1)]
    if missing := [part.name for part in parts if not part.is_file()]:
        raise BadInput(f"{path} has {count} parts, and {missing[0]} is not beside it: download it too")
    return parts


def _read_one(path: Path) -> tuple[dict[str, Value], tuple[Tensor, ...]]:
    try:
        with path.open("rb") as file:
            magic = file.read(4)
            if magic != b"GGUF":
                what = "is empty" if not magic else "is not a GGUF file"
                raise BadInput(f"{path} {what}: give a GGUF model")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Cursor(data).contents()
    except OSError as e:
        raise BadInput(f"cannot read the model {path}: {e.strerror}; give a GGUF model") from e
    except (struct.error, UnicodeDecodeError, KeyError, OverflowError, IndexError, MemoryError) as e:
        raise BadInput(f"{path} is truncated or damaged; download it again") from e


class _Cursor:
    """Reads values one after another. struct.error at the end of the data, KeyError for an unknown type."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 4

    def contents(self) -> tuple[dict[str, Value], tuple[Tensor, ...]]:
        version = self._number("I")
        # A big-endian file shows as a version in the high bytes.
        if version & 0xFFFF == 0 or version < 2:
            raise BadInput(f"this GGUF file has version {version}: only little-endian files of version 2 or later work")
        n_tensors, count = self._number("Q"), self._number("Q")
        pairs: dict[str, Value] = {}
        for _ in range(count):
            key = self._string()
            pairs[key] = self._value(self._number("I"))
        found = [self._tensor() for _ in range(n_tensors)]
        alignment = pairs.get("general.alignment", _ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise KeyError("general.alignment")
        data = -(-self._at // alignment) * alignment
        return pairs, tuple(Tensor(name, shape, kind, data + offset) for name, shape, kind, offset in found)

    def _tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        shape = tuple(self._number("Q") for _ in range(self._number("I")))
        return name, shape, self._number("I"), self._number("Q")

    def _number(self, code: str) -> Any:
        (value,) = struct.unpack_from("<" + code, self._data, self._at)
        self._at += struct.calcsize(code)
        return value

    def _string(self) -> str:
        length = self._number("Q")
        self._need(length)
        text = self._data[self._at : self._at + length].decode("utf-8", errors="replace")
        self._at += length
        return text

    def _need(self, length: int) -> None:
        if self._at + length > len(self._data):
            raise struct.error("past the end")

    def _value(self, kind: int) -> Value:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array()
        value: int | float | bool = self._number(_SCALARS[kind])
        return value

    def _array(self) -> list[Any]:
        kind, length = self._number("I"), self._number("Q")
        if kind == _STRING:
            return self._strings(length)
        if kind == _ARRAY:
            return [self._array() for _ in range(length)]
        code = _SCALARS[kind]
        size = struct.calcsize(code) * length
        self._need(size)
        at, self._at = self._at, self._at + size
        if length > _LONGEST:
            return Skipped(length)
        return list(struct.unpack_from(f"<{length}{code}", self._data, at))

    def _strings(self, length: int) -> list[Any]:
        # Nothing is decoded: a vocabulary has hundreds of thousands of tokens.
        data, at, unpack = self._data, self._at, struct.Struct("<Q").unpack_from
        for _ in range(length):
            at += 8 + unpack(data, at)[0]
        self._at = at
        self._need(0)
        return Skipped(length)
