"""``sb3-nser serve``: the embedded model server in the foreground."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType

from sb3_nser.errors import ConfigurationError
from sb3_nser.local.engine import Engine, require_runtime
from sb3_nser.local.gguf_info import read_gguf
from sb3_nser.local.models import CATALOGUE, DEFAULT_MODEL, canonical_name, file_digest, known_model, resolve_model
from sb3_nser.local.server import ModelServer, is_loopback
from sb3_nser.local.sources import Progress


def parse_model_arguments(values: Sequence[str]) -> dict[str, Path | None]:
    """Read ``NAME`` and ``NAME=PATH`` arguments.

    :param values: The arguments
    :return: Path given, or None, by name with tag
    :raises ConfigurationError: if a name is not one, a path is empty, or a name comes twice
    """
    wanted: dict[str, Path | None] = {}
    for value in values:
        name, equals, path = value.partition("=")
        name = canonical_name(name)
        if equals and not path:
            raise ConfigurationError(f"{value!r} gives no path; write NAME=PATH.")
        if name in wanted:
            raise ConfigurationError(f"The model {name} is given twice.")
        wanted[name] = Path(path) if equals else None
    return wanted


def resolve_models(values: Sequence[str], progress: Progress | None = None) -> dict[str, Path]:
    """Find the files of several models.

    :param values: ``NAME`` or ``NAME=PATH`` arguments
    :param progress: See ``resolve_model``
    :return: Files by name with tag
    :raises NSERError: as ``resolve_model`` does
    """
    wanted = parse_model_arguments(values)
    for name, path in wanted.items():
        if path is None:
            known_model(name)  # a wrong name is told before another model is downloaded
    return {name: resolve_model(name, path, progress) for name, path in wanted.items()}


def build_server(
    files: Mapping[str, Path], host: str = "127.0.0.1", port: int = 0, threads: int = 1, progress: Progress | None = None
) -> ModelServer:
    """Make a server that listens but does not serve yet. Models are loaded when they are first asked for.

    :param files: Model files by name with tag
    :param host: Address to listen on
    :param port: Port; 0 takes a free one
    :param threads: Threads that compute, per model; keep it below the number of idle cores
    :param progress: Called while the hash of a file that is new here is computed
    :return: The server
    :raises ConfigurationError: if the port cannot be had or ``threads`` is below 1
    :raises ModelFileError: if a file is not a model file
    """
    if threads < 1:
        raise ConfigurationError(f"threads must be at least 1, got {threads}.")
    if not 0 <= port <= 65535:
        raise ConfigurationError(f"port must be between 0 and 65535, got {port}.")
    infos = {name: read_gguf(path, file_digest(path, progress)) for name, path in files.items()}
    return ModelServer({name: Engine(name, info, threads) for name, info in infos.items()}, host, port)


def serve_until_stopped(server: ModelServer, watch: Callable[[Callable[[], None]], None] | None = None) -> None:
    """Serve until Ctrl-C or SIGTERM. Call it in the main thread.

    :param server: A server that listens
    :param watch: Given a function that stops the server, for other reasons to stop
    """

    def stop() -> None:  # shutdown waits for the serving loop, so it must not be called from within it
        threading.Thread(target=server.shutdown, daemon=True).start()

    def on_signal(number: int, frame: FrameType | None) -> None:
        stop()

    previous = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        if watch is not None:
            watch(stop)
        server.serve_forever(poll_interval=0.1)
    finally:
        server.server_close()
        for number, handler in previous.items():
            signal.signal(number, handler)


class _Printer:
    """Prints progress: a line per message, with a percentage where the output is a terminal."""

    def __init__(self) -> None:
        self.message = ""
        self.percent = -1

    def __call__(self, message: str, done: int, total: int) -> None:
        percent = 100 * done // max(total, 1)
        if sys.stderr.isatty():
            if (message, percent) != (self.message, self.percent):
                end = "\n" if done >= total else ""
                print(f"\r{message}: {percent:3d}% of {total / 1e6:.0f} MB", end=end, file=sys.stderr, flush=True)
        elif message != self.message:
            print(f"{message}: {total / 1e6:.0f} MB", file=sys.stderr, flush=True)
        self.message, self.percent = message, percent


def add_serve_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``sb3-nser serve``.

    :param parser: The subcommand's parser
    """
    parser.add_argument(
        "--model",
        action="append",
        metavar="NAME[=PATH]",
        help=f"model to serve, may be repeated; known names: {', '.join(CATALOGUE)}; NAME=PATH serves a GGUF file of your "
        f"own (default: {DEFAULT_MODEL})",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s, this machine only)")
    parser.add_argument("--port", type=int, default=11434, help="port, 0 for a free one (default: %(default)s)")
    parser.add_argument(
        "--threads", type=int, default=1, help="threads that compute; more than there are idle cores is slower (default: 1)"
    )


def run_serve(args: argparse.Namespace) -> int:
    """Run ``sb3-nser serve`` until Ctrl-C or SIGTERM.

    :param args: What ``add_serve_arguments`` parsed
    :return: Exit status
    :raises NSERError: with one sentence, if it cannot start
    """
    require_runtime()
    printer = _Printer()
    files = resolve_models(args.model or [DEFAULT_MODEL], printer)
    server = build_server(files, args.host, args.port, args.threads, printer)
    if not is_loopback(args.host):
        print(f"Warning: {args.host} can be reached from other machines, and the server asks nobody for a password.")
    print(f"Serving {', '.join(files)} at {server.url} (Ctrl-C ends it)")
    print(f"For Ollama clients: export OLLAMA_HOST={server.url}", flush=True)
    serve_until_stopped(server)
    print("Stopped.")
    return 0
