"""Credentials have no place in what is logged, answered or kept."""

from __future__ import annotations

import hashlib
import re
from typing import Annotated

from pydantic import AfterValidator

PATTERNS = (
    (re.compile(r"\b(assay_[0-9a-f]{12}_)[\w-]+"), r"\1***"),
    (re.compile(r"(?i)\b([a-z][a-z0-9+.-]*:(?:/|~1){2})[^/\s?#@\"']*@"), r"\1***@"),
    (re.compile(r"(?i)\b(bearer\s+)[\w.~+/=-]{8,}"), r"\1***"),
    (re.compile(r"(?i)\b(basic\s+)[\w+/=-]{16,}"), r"\1***"),
    (
        re.compile(
            r"(?i)([?&;](?:[\w-]*(?:key|token|password|secret|signature|credential))=)[^&\s\"']+"
        ),
        r"\1***",
    ),
)
"""API keys, addresses with user and password (in JSON pointers too), header values, parameters."""

SHORT = re.compile(r"[ -~]{1,200}")


def hidden(text: str) -> str:
    """The text with every credential replaced by three stars."""
    for pattern, shown in PATTERNS:
        text = pattern.sub(shown, text)
    return text


def mark(text: str) -> str:
    """What somebody else tells versions apart by: as it is if it is short and plain, or its hash."""
    if SHORT.fullmatch(text) and hidden(text) == text:
        return text
    return f"sha256 {hashlib.sha256(text.encode()).hexdigest()}"


def _without_credentials(text: str) -> str:
    if hidden(text) != text:
        raise ValueError("leave the credentials out: this text is kept and shown")
    return text


KEPT = AfterValidator(_without_credentials)
"""For text that is kept and shown, after what else limits it: a schema shows no limit that follows."""
Plain = Annotated[str, KEPT]
"""Text that is kept and shown, and therefore holds no credential."""
