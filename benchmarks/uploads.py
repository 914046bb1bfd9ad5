"""POST of a .npy to the service beside an application that only streams the body to a file."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

N, D = int(os.environ.get("BENCH_ROWS", "1000000")), 384
LEAST_RATIO = 0.6
CHUNK = 1 << 20
BARE = """
import sys
import uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

async def upload(request):
    with open(sys.argv[2] + "/rows", "wb") as file:
        async for chunk in request.stream():
            file.write(chunk)
    return Response(status_code=201)

app = Starlette(routes=[Route("/v1/datasets", upload, methods=["POST"])])
uvicorn.run(app, port=int(sys.argv[1]), log_level="warning")
"""
OURS = """
import sys
from pathlib import Path
import uvicorn
from api.main import create_app
from service.storage.memory import memory_services
from service.storage.objects import ObjectDatasets

app = create_app(memory_services(datasets=ObjectDatasets(Path(sys.argv[2]))))
uvicorn.run(app, port=int(sys.argv[1]), log_level="warning")
"""


def write(path: Path) -> None:
    rows = np.lib.format.open_memmap(path, "w+", np.float32, (N, D))
    random = np.random.default_rng(0)
    for start in range(0, N, 50_000):
        block = rows[start : start + 50_000]
        block[:] = random.normal(size=block.shape)
    rows.flush()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def post(port: int, path: Path, rows_seen: int) -> float:
    """Seconds of one upload; the last rows differ each time, so that nothing is known already."""
    with path.open("r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write(np.array([rows_seen, rows_seen], np.float32).tobytes())
    connection = http.client.HTTPConnection("127.0.0.1", port, blocksize=CHUNK)
    headers = {"Content-Type": "application/x-npy", "Content-Length": str(path.stat().st_size)}
    started = time.perf_counter()
    with path.open("rb") as file:
        connection.request("POST", "/v1/datasets", body=file, headers=headers)
        answer = connection.getresponse()
        text = answer.read()
    spent = time.perf_counter() - started
    assert answer.status == 201, text
    connection.close()
    return spent


def wait(port: int) -> None:
    for _ in range(300):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError("the server did not start")


def main() -> None:
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_FOLDER")) as folder:
        home = Path(folder)
        write(home / "rows.npy")
        best = {}
        for name, program in (("bare", BARE), ("ours", OURS)):
            (home / name).mkdir()
            port = free_port()
            server = subprocess.Popen([sys.executable, "-c", program, str(port), str(home / name)])
            try:
                wait(port)
                best[name] = min(post(port, home / "rows.npy", turn) for turn in range(3))
            finally:
                server.terminate()
                server.wait()
        size = (home / "rows.npy").stat().st_size / 1e6
        print(
            f"upload of {size:.0f} MB of .npy: {size / best['ours']:.0f} MB/s, hashed, checked and "
            f"stored; a bare request.stream() to a file {size / best['bare']:.0f} MB/s; ratio "
            f"{best['bare'] / best['ours']:.2f}"
        )
        assert best["bare"] / best["ours"] >= LEAST_RATIO


if __name__ == "__main__":
    main()
