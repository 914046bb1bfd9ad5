"""What counts as a credential, and what does not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from service.redaction import Plain, hidden

KEY = "assay_0123456789ab_" + "s3cretS3CRET-_" * 3


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"key {KEY}.", "key assay_0123456789ab_***."),
        ("postgres://app:hunter2@db.local/x", "postgres://***@db.local/x"),
        ("at redis://:hunter2@10.0.0.1:6379/0 now", "at redis://***@10.0.0.1:6379/0 now"),
        ("https://hunter2@host", "https://***@host"),
        ("Authorization: Bearer hunter2hunter2", "Authorization: Bearer ***"),
        ("basic  aHVudGVyMjpodW50ZXIy==", "basic  ***"),
        (
            "https://s3/x?a=1&X-Amz-Signature=hunter2&b=2",
            "https://s3/x?a=1&X-Amz-Signature=***&b=2",
        ),
        ("/v1/jobs?api_key=hunter2", "/v1/jobs?api_key=***"),
        ("/inputs/https:~1~1a:hunter2@h~1x: no", "/inputs/https:~1~1***@h~1x: no"),
        ("h?access-token=hunter2 x", "h?access-token=*** x"),
        ('{"a": "s3://hunter2:x@b/c", "b": 1}', '{"a": "s3://***@b/c", "b": 1}'),
    ],
)
def test_a_credential_is_replaced_and_its_surroundings_stay(text: str, shown: str) -> None:
    assert hidden(text) == shown
    assert hidden(shown) == shown


@pytest.mark.parametrize(
    "text",
    ["", "s3://bucket/key.npy", "mail someone@host.example", "http://host:80/a@b", "basic geometry",
     "a bearer of news", "intfloat/e5-small-v2", "sha256:" + "ab" * 32, "job_0123456789abcdef01234567",
     "?limit=3&cursor=5-job_1", "https://host/path?name=a@b", "the key=value pairs", "e5 @ 3f2a"],
)  # fmt: skip
def test_other_text_stays_as_it_is(text: str) -> None:
    assert hidden(text) == text
    assert TypeAdapter(Plain).validate_python(text) == text


@given(st.text(max_size=200))
def test_hiding_twice_hides_nothing_more(text: str) -> None:
    assert hidden(hidden(text)) == hidden(text)


def test_text_that_is_kept_is_refused_without_being_shown() -> None:
    """The fault says what to do, not what it saw."""
    with pytest.raises(ValidationError) as raised:
        TypeAdapter(Plain).validate_python("postgres://app:hunter2@db/x")
    (fault,) = raised.value.errors(include_url=False, include_input=False, include_context=False)
    assert "leave the credentials out" in fault["msg"]
    assert "hunter2" not in str(fault)
