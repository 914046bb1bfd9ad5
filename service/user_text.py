"""Text of users among text of ours: it stays words, whatever is in it."""

from __future__ import annotations

import re
import unicodedata

TURNING = frozenset("\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters nobody sees that change the direction of others."""
OUTSIDE_XML = frozenset("\ufffe\uffff")
"""Characters no XML can hold, beside controls and surrogates: a drawing with one is none."""
UNSEEN = TURNING | OUTSIDE_XML
MENTION = re.compile(r"(?<!\w)@")
"""Where a name that follows would be told of it; `hit@10` is none."""
MARKUP = frozenset(r"\`*_[]<>|#!&~")
"""What Markdown reads as more than itself."""


def visible(text: str) -> str:
    """The same with characters that are not seen spelt out: none hides, turns or ends a line."""
    return "".join(
        f"[U+{ord(c):04X}]" if c in UNSEEN or unicodedata.category(c) in ("Cc", "Cs") else c
        for c in text
    )


def in_markdown(text: str) -> str:
    """Words that stay words: no markup, no new cell, no new line, nobody notified."""
    escaped = "".join(f"\\{c}" if c in MARKUP else c for c in visible(" ".join(text.split())))
    return MENTION.sub("@\N{ZERO WIDTH SPACE}", escaped)
