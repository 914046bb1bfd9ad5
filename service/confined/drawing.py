"""
A process that draws: Vega-Lite specifications in, SVG and PNG out, nothing fetched.

It reads lines of JSON, `{"spec", "format"}`, and answers each with a line `{"bytes": n}` and n bytes,
or `{"error": text}`; it ends with its input.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from typing import IO, Any

VEGA_LITE = "6.4"
SCALE = 2.0
"""Pixels of a PNG for each of an SVG."""
IMAGE = "<image"
"""An element: in text of data its first sign is escaped. For a PNG the library would fetch it."""


def main() -> None:
    """Draw until the input ends; the first argument says how much memory drawing may take."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    _limit(json.loads(sys.argv[1])["memory_bytes"])
    for line in sys.stdin.buffer:
        task = json.loads(line)
        try:
            drawn = draw(task["spec"], task["format"])
        except ValueError as error:
            _send(out, {"error": " ".join(str(error).split())[:500]}, b"")
        else:
            _send(out, {"bytes": len(drawn)}, drawn)


def draw(spec: dict[str, Any], wanted: str) -> bytes:
    """The picture of a specification; what it would have to fetch is an error."""
    import vl_convert

    svg: str = vl_convert.vegalite_to_svg(spec, vl_version=VEGA_LITE, allowed_base_urls=[])
    if IMAGE in svg:
        raise ValueError("an image would have to be fetched, which is not allowed")
    if wanted == "svg":
        return svg.encode()
    png: bytes = vl_convert.svg_to_png(svg, scale=SCALE)
    return png


def _limit(memory_bytes: int) -> None:
    """Of data, not of addresses: the engine reserves many more of these than it uses."""
    for limit, value in (
        (resource.RLIMIT_DATA, memory_bytes),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(limit)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (value, value))


def _send(out: IO[bytes], header: dict[str, Any], content: bytes) -> None:
    out.write(json.dumps(header).encode() + b"\n" + content)
    out.flush()


if __name__ == "__main__":
    main()
