"""Text of users: what hides is shown, what is markup is escaped."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from service.user_text import in_markdown, visible

PARSER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])


def test_characters_that_are_not_seen_are_spelt_out() -> None:
    """Controls, bidirectional ones, halves of surrogate pairs, and what no XML can hold."""
    assert visible("a\x00\x1b[31m") == "a[U+0000][U+001B][31m"
    assert visible("\N{RIGHT-TO-LEFT OVERRIDE}x") == "[U+202E]x"
    assert visible("\ud800") == "[U+D800]"
    assert visible("\ufffe\uffff") == "[U+FFFE][U+FFFF]"
    assert visible("naïve 漢字 \N{HEBREW LETTER ALEF}") == "naïve 漢字 \N{HEBREW LETTER ALEF}"


def test_a_name_is_not_notified_and_a_measure_stays_as_it_is() -> None:
    assert "@team" not in in_markdown("ask @team")
    assert in_markdown("hit@10") == "hit@10"


@given(st.text(max_size=40) | st.text("`*_[]<>|#!&~\\()-+.1 a@:/", max_size=40))
def test_a_parser_finds_nothing_but_the_words(text: str) -> None:
    """In a paragraph, behind other words, as every text of ours stands."""
    tokens = PARSER.parse(f"word {in_markdown(text)} word")
    inner = [one for token in tokens for one in (token.children or [])]
    assert [token.type for token in tokens] == ["paragraph_open", "inline", "paragraph_close"]
    assert {one.type for one in inner} <= {"text", "text_special"}
    seen = "".join(one.content for one in inner).replace("\N{ZERO WIDTH SPACE}", "")
    expected = visible(" ".join(f"word {text} word".split())).replace("\N{ZERO WIDTH SPACE}", "")
    assert " ".join(seen.split()) == expected
