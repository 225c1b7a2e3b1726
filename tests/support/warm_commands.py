"""Commands of a shell that need no import of torch: each runs in a fork of one process that has imported everything.

``WarmCommands`` starts that process. The programs that it writes, ``torchferry`` and ``warm-python``, hand their
arguments, folder, environment and streams to it by a socket, wait, and end as the command did. Commands of one
``WarmCommands`` run one after the other, as they share the process that runs archives, too."""

from __future__ import annotations

import array
import contextlib
import itertools
import json
import os
import re
import select
import shlex
import socket
import subprocess
import sys
import time
import traceback
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

ROOT = Path(__file__).parents[2]
# What the programs run: the standard library's smallest part.
CLIENT = """import array, json, os, socket, sys
with socket.socket(socket.AF_UNIX) as pipe:
    pipe.connect({address!r})
    request = json.dumps([{kind!r}, sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
    streams = array.array("i", [0, 1, 2])
    pipe.sendmsg([b"streams"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
    pipe.sendall(request + b"\\n")
    code = pipe.recv(16)
sys.exit(int(code) if code else 1)
"""


class WarmCommands:
    """The process that forks; ``folder`` gets its socket, and ``bin`` with its programs."""

    def __init__(self, folder: Path, columns: int = 100) -> None:
        self.bin = folder / "bin"
        address = folder / "socket"
        self.bin.mkdir(parents=True)
        for kind in ("torchferry", "warm-python"):
            client, program = folder / f"{kind}.py", self.bin / kind
            client.write_text(CLIENT.format(address=str(address), kind=kind))
            program.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, "-IS", str(client)])} "$@"\n')
            program.chmod(0o755)
        # What a command prints is as wide as its process was told at its start.
        environment = {**os.environ, "COLUMNS": str(columns), "PYTHONPATH": str(ROOT)}
        command = [sys.executable, __file__, str(address)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)
        while not address.exists():
            assert self._process.poll() is None
            time.sleep(0.05)

    def close(self) -> None:
        """End the process, as the end of this one does."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def serve(address: str) -> None:
    """Import what commands import, and run each that is asked for in a fork, until the standard input is closed."""
    from runtime_checks.runners import fork_server
    from torchferry.cli import app
    from torchferry.cli.startup import pause_collection

    with pause_collection():
        import torchferry.api  # noqa: F401

    with fork_server.shared_fork_server() as server, socket.socket(socket.AF_UNIX) as listener:
        server.start()
        # It appears once commands can come.
        listener.bind(address + ".new")
        listener.listen()
        os.rename(address + ".new", address)
        while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
            pipe, _ = listener.accept()
            with pipe:
                pid = os.fork()
                if pid == 0:
                    listener.close()
                    server.take_over()
                    os._exit(answer(pipe, app.run))
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with contextlib.suppress(OSError):
                    pipe.sendall(str(status if status >= 0 else 128 - status).encode())


def answer(pipe: socket.socket, run: Callable[[list[str]], int]) -> int:
    """Take the command's place: its streams, folder and environment; return its exit code."""
    streams = array.array("i")
    _, extra, _, _ = pipe.recvmsg(16, socket.CMSG_SPACE(3 * streams.itemsize))
    for _, _, data in extra:
        streams.frombytes(data)
    for place, stream in enumerate(streams):
        os.dup2(stream, place)
        os.close(stream)
    with pipe.makefile() as lines:
        kind, arguments, folder, environment = json.loads(lines.readline())
    os.chdir(folder)
    sys.path[0] = folder
    sys.argv = [kind, *arguments]
    os.environ.clear()
    os.environ.update(environment)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
    try:
        return run(arguments) if kind == "torchferry" else run_python(sys.stdin.read(), arguments)
    except SystemExit as end:
        return int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def run_python(text: str, options: list[str]) -> int:
    """Run a program as ``python OPTIONS -`` does, of which ``-W`` alone is known."""
    warnings.resetwarnings()
    for flag, option in itertools.pairwise(options):
        action, _, start = option.partition(":")
        if flag == "-W":
            warnings.filterwarnings(cast(Any, action), message=re.escape(start))
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    exec(compile(text, "<stdin>", "exec"), vars(main))
    return 0


if __name__ == "__main__":
    serve(sys.argv[1])
