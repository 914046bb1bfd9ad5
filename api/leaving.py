"""Long answers end when the process is asked to."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

ASKED = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def leaving(close: Callable[[], None]) -> Iterator[None]:
    """
    Call `close` on the running event loop at a signal to end, and let it do what it did before.

    uvicorn tells applications only after the last connection has ended.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in ASKED}

    def leave(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(close)
        if callable(former := before[signal.Signals(number)]):
            former(number, frame)

    for number in ASKED:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)
