"""The confined process: limits on itself first, then a file read from an inherited descriptor."""

from __future__ import annotations

import json
import mmap
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from service.confined.frames import Found, Rows, Unreadable, send, send_error


def main() -> None:
    """Read what the first argument says: {"kind", "descriptor", "options", "memory_bytes", "cpu_s"}."""
    task = json.loads(sys.argv[1])
    out = os.fdopen(os.dup(1), "wb", buffering=1 << 16)
    os.dup2(2, 1)  # what a library prints is no frame
    try:
        send(out, *_read(task))
    except Unreadable as error:
        send_error(out, error)
    except MemoryError:
        detail = f"Reading the file takes over {task['memory_bytes']} bytes of memory."
        send_error(out, Unreadable("payload-too-large", detail))
    except (BrokenPipeError, KeyboardInterrupt):
        os._exit(1)  # nobody listens any more
    except Exception as error:
        send_error(out, _as_unreadable(error))


def _read(task: dict[str, Any]) -> tuple[Found, Iterator[Rows]]:
    descriptor, kind, options = task["descriptor"], task["kind"], task["options"]
    if kind == "faiss":
        from service.confined.indexes import read_index

        _limit(task)
        _cap(resource.RLIMIT_NOFILE, 0)  # an index may name a file to read its lists from
        return read_index(os.fdopen(descriptor, "rb"))
    from service.confined.tables import read_arrow, read_parquet

    if os.fstat(descriptor).st_size == 0:
        raise Unreadable("malformed-payload", "The file is empty.")
    data = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
    _limit(task)
    return (read_parquet if kind == "parquet" else read_arrow)(data, options)


def _limit(task: dict[str, Any]) -> None:
    """Memory counts from what the libraries and the mapped file have taken by now."""
    memory = _address_space() + task["memory_bytes"]
    for limit, value in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CPU, task["cpu_s"]),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        _cap(limit, value)


def _cap(limit: int, value: int) -> None:
    hard = resource.getrlimit(limit)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(limit, (value, value))


def _address_space() -> int:
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return 1 << 32
    return int(statm.read_text().split()[0]) * resource.getpagesize()


def _as_unreadable(error: Exception) -> Unreadable:
    """What a library says of a file it cannot read; it has seen no secret."""
    words = " ".join(str(error).split())[:300]
    return Unreadable("malformed-payload", f"The file cannot be read: {words}")


if __name__ == "__main__":
    main()
