"""The process behind ``EmbeddedServer``.

It serves until its parent closes the pipe at its standard input, or is gone.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from sb3_nser.errors import NSERError
from sb3_nser.local.command import build_server, resolve_models, serve_until_stopped


def _watch_parent(stop: Callable[[], None]) -> None:
    """Stop when the parent ends. A generation in progress is not waited for."""
    parent = os.getppid()

    def end() -> None:
        stop()
        time.sleep(4.0)
        os._exit(0)  # whatever still runs has nobody to run for

    def watch_pipe() -> None:
        while sys.stdin.buffer.read(1024):
            pass
        end()

    def watch_parent() -> None:  # the pipe alone is not enough: a fork of the parent may hold its other end open
        while os.getppid() == parent:
            time.sleep(1.0)
        end()

    for watch in (watch_pipe, watch_parent):
        threading.Thread(target=watch, daemon=True).start()


def main(argv: list[str] | None = None) -> int:
    """Serve, and write the address to a file once the port is open.

    :param argv: Command line without the program's name
    :return: Exit status
    """
    parser = argparse.ArgumentParser(prog="sb3_nser.local.worker")
    parser.add_argument("--model", action="append", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--ready-file", type=Path, required=True)
    args = parser.parse_args(argv)
    try:
        server = build_server(resolve_models(args.model), args.host, args.port, args.threads)
    except NSERError as error:
        print(error, file=sys.stderr)
        return 1
    unfinished = args.ready_file.with_suffix(".tmp")
    unfinished.write_text(server.url)
    unfinished.replace(args.ready_file)
    serve_until_stopped(server, _watch_parent)
    sys.stdout.flush()
    os._exit(0)  # without waiting for threads that may be deep in native code
