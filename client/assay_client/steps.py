"""
What a conversation with a server is made of, without doing any of it.

A flow is a generator that yields steps and is sent their outcome: a `Send` the answer, a `Hear` an
event, a `Work` the value, others nothing. `drivers` carries flows out, waiting or not; nothing else
differs between `Assay` and `AsyncAssay`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from assay_client.payload import Payload

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")

Query = Mapping[str, str | int | Sequence[str]]
UploadProgress = Callable[[str, int, int], None]
"""Called with the name, the bytes sent and all bytes."""


@dataclass(frozen=True)
class Send:
    """One request."""

    method: str
    path: str
    headers: Mapping[str, str] | None = None
    query: Query | None = None
    json: Any = None
    payload: Payload | None = None
    progress: UploadProgress | None = None
    stream: bool = False
    """Whether the answer, if it is a success, is left open to be heard."""


@dataclass(frozen=True)
class Hear:
    """The next event of an open answer; nothing once there are no more."""

    answer: httpx.Response


@dataclass(frozen=True)
class HangUp:
    """An open answer is heard no more."""

    answer: httpx.Response


@dataclass(frozen=True)
class Pause:
    """Nothing, for some seconds."""

    seconds: float


@dataclass(frozen=True)
class Work:
    """Something that takes this machine a while."""

    do: Callable[[], Any]


Step = Send | Hear | HangUp | Pause | Work
Flow = Generator[Step, Any, T]
