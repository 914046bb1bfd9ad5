"""The demonstration: a service of its own, real embeddings over HTTP, reports, a verdict."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

from service import logs
from service.settings import Settings
from workers.stack import assemble

EXAMPLES = Path(__file__).parent.parent / "examples"
READY_WITHIN_S = 60.0
ENCODERS = {"minilm": "all-MiniLM-L6-v2", "e5small_q4": "multilingual-e5-small, 4 bit"}


def run() -> int:
    """Returns the exit code of the gate."""
    logs.configure(logging.WARNING)
    os.environ.setdefault("ASSAY_LOG_LEVEL", "warning")
    with tempfile.TemporaryDirectory(prefix="assay-demo-") as home:
        port = _free_port()
        os.environ.update(ASSAY_HOME=home, ASSAY_SERVER=f"http://127.0.0.1:{port}")
        for name in ("REDIS_URL", "ASSAY_STORE", "ASSAY_API_KEYS_FILE", "ASSAY_API_KEY"):
            os.environ.pop(name, None)
        _say("Starting a server, an API and a worker")
        stack = assemble(Settings.read({**os.environ}), workers=1, api=("127.0.0.1", port))
        supervisor = stack.supervisor
        stop = threading.Event()

        def supervise() -> None:
            while not stop.wait(0.2):
                supervisor.look()
                supervisor.tick()

        supervisor.look()
        thread = threading.Thread(target=supervise)
        thread.start()
        try:
            _wait_until_ready(port)
            return _show()
        finally:
            stop.set()
            thread.join()
            supervisor.stop()
            _say("Everything is stopped")


def _show() -> int:
    code = 0
    for folder, name in ENCODERS.items():
        _say(f"{name}: 100 abstracts cut in half; do the halves find each other?")
        data = EXAMPLES / "scifact_halves" / folder
        sides = ["--a", str(data / "A.npy"), "--b", str(data / "B.npy")]
        code = code or _assay("check", "cosine_floor", *sides, "--param", "shared_mean=true")
        code = code or _assay("check", "geometry", "--vectors", str(data / "A.npy"))
    if code:
        return code
    _say("A release gate over both encoders")
    bound = [
        f"{name}_{side.lower()}={EXAMPLES / 'scifact_halves' / folder / f'{side}.npy'}"
        for name, folder in (("minilm", "minilm"), ("e5", "e5small_q4"))
        for side in "AB"
    ]
    inputs = [part for value in bound for part in ("--input", value)]
    return _assay("gate", str(EXAMPLES / "policies" / "halves.yaml"), *inputs)


def _assay(*words: str) -> int:
    shown = " ".join(words).replace(str(EXAMPLES), os.path.relpath(EXAMPLES))
    print(f"$ assay {shown}", flush=True)  # noqa: T201
    command = [sys.executable, "-m", "assay_client.cli", *words]
    return subprocess.run(command, check=False).returncode  # noqa: S603


def _say(text: str) -> None:
    print(f"\n=== {text}", flush=True)  # noqa: T201


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_ready(port: int) -> None:
    until = time.monotonic() + READY_WITHIN_S
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while True:
        try:
            with direct.open(f"http://127.0.0.1:{port}/readyz", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            if time.monotonic() > until:
                raise
            time.sleep(0.2)
