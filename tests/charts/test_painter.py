"""Drawing happens in a process that may be stopped, knows no secret and fetches nothing."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from service.charts import NOT_INSTALLED, Painter, Picture, pictures
from service.charts.painter import MEMORY_BYTES, MOST_DRAWN, MOST_KEPT, MOST_WAITING
from service.errors import ChartsNotInstalled, Internal, Unavailable
from service.report import load_report

from .drawn import parsed

FILE = Path(__file__).parent.parent / "data/reports/1.0/power.json"
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture
def picture() -> Picture:
    return next(pictures(load_report(FILE.read_bytes())))


def other(picture: Picture, number: int) -> Picture:
    """The same with another width, so that it is drawn again."""
    return replace(picture, spec={**picture.spec, "width": 100 + number})


def process(painter: Painter) -> int:
    found: Any = painter._process
    return int(found.pid)


def test_two_processes_draw_the_same_bytes(picture: Picture, painter: Painter) -> None:
    with closing(Painter()) as second:
        for wanted in ("svg", "png"):
            assert second.draw(picture, wanted) == painter.draw(picture, wanted)  # type: ignore[arg-type]


def test_a_png_has_two_pixels_for_each_of_the_svg(picture: Picture, painter: Painter) -> None:
    png, svg = painter.draw(picture, "png"), parsed(painter.draw(picture, "svg"))
    size = [int.from_bytes(png[at : at + 4], "big") for at in (16, 20)]
    assert size == [2 * int(svg.get(name, "0")) for name in ("width", "height")]


def test_what_was_drawn_is_remembered(picture: Picture) -> None:
    with closing(Painter()) as painter:
        first = painter.draw(picture, "svg")
        os.kill(process(painter), signal.SIGKILL)
        assert painter.draw(picture, "svg") == first
        for number in range(MOST_KEPT + 3):
            painter._keep(str(number).encode(), b"")
        assert len(painter._kept) == MOST_KEPT


def test_a_process_that_ends_is_replaced(picture: Picture) -> None:
    """Killed between two drawings: nobody notices."""
    with closing(Painter()) as painter:
        painter.draw(picture, "svg")
        first = process(painter)
        os.kill(first, signal.SIGKILL)
        painter._process.wait()  # type: ignore[union-attr]
        assert painter.draw(other(picture, 1), "svg")
        assert process(painter) != first


def test_a_drawing_that_takes_too_long_is_stopped(picture: Picture) -> None:
    """The process is gone, the answer says to try again, and the next drawing has its own."""
    with closing(Painter(timeout_s=0.01)) as painter:
        with pytest.raises(Unavailable, match=r"took over 0.01 s"):
            painter.draw(picture, "svg")
        assert painter._process is None
        painter._timeout_s = 20.0
        assert painter.draw(picture, "svg").startswith(b"<svg")


def test_a_process_is_replaced_after_so_many_drawings(picture: Picture) -> None:
    with closing(Painter()) as painter:
        painter.draw(picture, "svg")
        painter._drawn = MOST_DRAWN - 1
        painter.draw(other(picture, 1), "svg")
        assert painter._process is None
        assert painter.draw(other(picture, 2), "svg")


def test_nothing_is_fetched(picture: Picture, painter: Painter) -> None:
    """Data, images and links that name a server that listens: it hears nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.3)
        address = f"http://127.0.0.1:{server.getsockname()[1]}/x"
        data = {**picture.spec, "data": {"url": f"{address}.json"}, "layer": [{"mark": "point"}]}
        with pytest.raises(Internal, match="not allowed"):
            painter.draw(replace(picture, spec=data), "svg")
        image = {
            "data": {"values": [{"at": f"{address}.png"}]},
            "mark": "image",
            "encoding": {"url": {"field": "at"}},
        }
        for wanted in ("svg", "png"):
            with pytest.raises(Internal, match="not allowed"):
                painter.draw(replace(picture, spec=image), wanted)  # type: ignore[arg-type]
        with pytest.raises(TimeoutError):
            server.accept()


def test_what_is_no_picture_is_an_error_of_ours(picture: Picture, painter: Painter) -> None:
    with pytest.raises(Internal, match="could not be drawn"):
        painter.draw(replace(picture, spec={"mark": 1, "encoding": 2}), "svg")
    assert painter.draw(picture, "svg")


@linux
def test_the_process_knows_no_secret_and_has_limits(
    picture: Picture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_S3_SECRET", "hush")
    with closing(Painter()) as painter:
        painter.draw(picture, "svg")
        proc = Path(f"/proc/{process(painter)}")
        environment = (proc / "environ").read_bytes()
        assert b"hush" not in environment
        assert b"ASSAY" not in environment
        limits = (proc / "limits").read_text()
        assert str(MEMORY_BYTES) in next(
            line for line in limits.splitlines() if line.startswith("Max data size")
        )


def test_no_more_wait_than_there_is_room_for(picture: Picture) -> None:
    """While one draws, so many wait; the next is told to come back, and all others get theirs."""
    with closing(Painter()) as painter:
        painter.draw(picture, "svg")
        found: list[bytes] = []

        def draw(number: int) -> bytes:
            return painter.draw(other(picture, number), "svg")

        with painter._lock:
            threads = [
                threading.Thread(target=lambda i=i: found.append(draw(i)))
                for i in range(MOST_WAITING)
            ]  # fmt: skip
            for thread in threads:
                thread.start()
            until = time.monotonic() + 10
            while painter._room._value and time.monotonic() < until:  # type: ignore[attr-defined]
                time.sleep(0.01)
            with pytest.raises(Unavailable, match="Too many charts"):
                painter.draw(other(picture, 99), "svg")
        for thread in threads:
            thread.join()
        assert len(found) == MOST_WAITING
        assert painter.draw(other(picture, 99), "svg")


def test_without_the_library_it_says_what_to_install(
    picture: Picture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    painter = Painter()
    assert not painter.installed
    with pytest.raises(ChartsNotInstalled, match=r"embedding-assay\[charts\]"):
        painter.draw(picture, "svg")
    assert "vl.json" in NOT_INSTALLED


def test_a_painter_that_is_forgotten_ends_its_process(picture: Picture) -> None:
    painter = Painter()
    painter.draw(picture, "svg")
    child: Any = painter._process
    del painter
    assert child.wait(10) != 0


def test_the_process_ends_with_its_input() -> None:
    """As it does when whoever started it is killed."""
    from service.charts.painter import start

    child = start()
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.close()
    assert child.wait(10) == 0
    child.stdout.close()


def test_answers_are_framed(picture: Picture) -> None:
    """A line of JSON, then as many bytes as it says."""
    from service.charts.painter import start

    child = start()
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(json.dumps({"spec": picture.spec, "format": "svg"}).encode() + b"\n")
    child.stdin.close()
    answer = b""
    while piece := child.stdout.read(1 << 16):
        answer += piece
    child.wait(10)
    child.stdout.close()
    head, _, svg = answer.partition(b"\n")
    assert json.loads(head) == {"bytes": len(svg)}
    assert svg.startswith(b"<svg")
    assert svg.endswith(b"</svg>")
