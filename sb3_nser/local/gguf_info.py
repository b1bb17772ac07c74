"""What a GGUF file says about itself: the metadata that Ollama's ``tags``, ``show`` and ``ps`` report.

The file starts with a header of key-value pairs and tensor descriptions; only these are read, never the weights. Long
arrays (the vocabulary) are skipped, which keeps it at a fraction of a second.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, BinaryIO

from sb3_nser.errors import ModelFileError

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_LONGEST_ARRAY = 16  # longer ones are skipped
_LONGEST_STRING = 1 << 24
_MOST_ENTRIES = 1 << 20

_FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS",
    22: "IQ3_XS", 23: "IQ3_XXS", 25: "IQ4_NL", 30: "IQ4_XS", 32: "BF16",
}  # fmt: skip


@dataclass(frozen=True)
class GGUFInfo:
    """A model file's own description.

    :param path: The file
    :param size: Its size in bytes
    :param modified_at: Its modification time, in UTC
    :param digest: Its sha256
    :param metadata: Key-value pairs without long arrays and without the chat template
    :param template: Chat template in Jinja's language, empty if the file has none
    :param parameter_count: Number of weights
    """

    path: Path
    size: int
    modified_at: datetime
    digest: str
    metadata: dict[str, Any] = field(repr=False)
    template: str = field(repr=False)
    parameter_count: int

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", "unknown"))

    @property
    def context_length(self) -> int:
        """Longest context in tokens the model was trained for; 0 if the file does not say."""
        value = self.metadata.get(f"{self.architecture}.context_length", 0)
        return value if isinstance(value, int) else 0

    @property
    def thinks(self) -> bool:
        """Whether the chat template knows a thinking phase."""
        return "enable_thinking" in self.template or "<think>" in self.template

    @property
    def capabilities(self) -> list[str]:
        """Only what this server can serve: a template may know tools, the server does not."""
        return ["completion", "thinking"] if self.thinks else ["completion"]

    def details(self) -> dict[str, Any]:
        """Give the ``details`` object of Ollama's responses."""
        return {
            "parent_model": "",
            "format": "gguf",
            "family": self.architecture,
            "families": [self.architecture],
            "parameter_size": human_count(self.parameter_count),
            "quantization_level": _FILE_TYPES.get(self.metadata.get("general.file_type", -1), "unknown"),
        }


def human_count(count: int) -> str:
    """Write a number of parameters in short form.

    :param count: Number of parameters
    :return: Like ``494.03M`` or ``1.5B``
    """
    return f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.2f}M"


class _Header:
    """Reads the header's primitive values, and refuses lengths no header has."""

    def __init__(self, stream: BinaryIO, size: int) -> None:
        self.stream = stream
        self.size = size

    def take(self, count: int) -> bytes:
        data = self.stream.read(count)
        if len(data) != count:
            raise ValueError("the file ends within its header")
        return data

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def length(self, most: int) -> int:
        value: int = self.number("<Q")
        if value > min(most, self.size):
            raise ValueError(f"a length of {value} is not plausible")
        return value

    def string(self) -> str:
        return self.take(self.length(_LONGEST_STRING)).decode("utf-8", "replace")

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY and depth < 4:
            return self.array(self.number("<I"), self.length(1 << 32), depth)
        raise ValueError(f"value type {kind} is unknown")

    def array(self, kind: int, count: int, depth: int) -> Any:
        if count <= _LONGEST_ARRAY:
            return [self.value(kind, depth + 1) for _ in range(count)]
        if kind in _SCALARS:
            self.stream.seek(count * struct.calcsize(_SCALARS[kind]), 1)
        elif kind == _STRING:
            for _ in range(count):
                self.stream.seek(self.length(_LONGEST_STRING), 1)
        else:
            raise ValueError("a long array of arrays is not plausible")
        return None


def _read_header(header: _Header) -> tuple[dict[str, Any], int]:
    if header.take(4) != b"GGUF":
        raise ValueError("it does not begin with the letters GGUF")
    version = header.number("<I")
    if version not in (2, 3):
        raise ValueError(f"GGUF version {version} is not 2 or 3")
    tensors, pairs = header.length(_MOST_ENTRIES), header.length(_MOST_ENTRIES)
    metadata: dict[str, Any] = {}
    for _ in range(pairs):
        key = header.string()
        metadata[key] = header.value(header.number("<I"))
    parameters = 0
    for _ in range(tensors):
        header.string()
        weights = 1
        for _ in range(min(header.number("<I"), 8)):
            weights *= header.number("<Q")
        header.take(12)  # type and offset
        parameters += weights
    return metadata, parameters


def read_gguf(path: Path, digest: str) -> GGUFInfo:
    """Read a model file's description.

    :param path: A GGUF file
    :param digest: Its sha256, which the server reports
    :return: The description
    :raises ModelFileError: if the file cannot be read or is not GGUF
    """
    try:
        stat = path.stat()
        with path.open("rb") as stream:
            metadata, parameters = _read_header(_Header(stream, stat.st_size))
    except (OSError, ValueError, struct.error) as error:
        raise ModelFileError(f"{path} is not a model file that can be read: {error}.") from error
    template = metadata.pop("tokenizer.chat_template", "")
    return GGUFInfo(
        path=path,
        size=stat.st_size,
        modified_at=datetime.fromtimestamp(stat.st_mtime, timezone.utc),
        digest=digest,
        metadata={key: value for key, value in metadata.items() if value is not None},
        template=template if isinstance(template, str) else "",
        parameter_count=parameters,
    )
