"""What a source may reach: checked addresses, and regular files below a folder."""

from __future__ import annotations

import ipaddress
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import AssayError, InvalidRequest, SourceDenied, SourceUnreachable
from service.sources import guard
from service.sources.connection import Connection


@pytest.mark.parametrize(
    ("address", "public", "private"),
    [
        ("93.184.216.34", True, True),
        ("2606:4700::1111", True, True),
        ("10.1.2.3", False, True),
        ("172.16.0.1", False, True),
        ("192.168.1.1", False, True),
        ("127.0.0.1", False, True),
        ("::1", False, True),
        ("fd00::1", False, True),
        ("169.254.169.254", False, False),
        ("fe80::1", False, False),
        ("::ffff:169.254.169.254", False, False),
        ("::ffff:10.0.0.1", False, True),
        ("64:ff9b::a9fe:a9fe", False, False),
        ("64:ff9b::5db8:d822", True, True),
        ("2002:a9fe:a9fe::1", False, False),
        ("0.0.0.0", False, False),
        ("::", False, False),
        ("224.0.0.1", False, False),
        ("100.64.0.1", False, False),
    ],
)
def test_which_addresses_may_be_reached(address: str, public: bool, private: bool) -> None:
    parsed = ipaddress.ip_address(address)
    assert guard.allowed(parsed, private=False) is public
    assert guard.allowed(parsed, private=True) is private


NEVER = """
    0.0.0.0/8 100.64.0.0/10 169.254.0.0/16 192.0.0.0/29 192.0.0.170/31 192.0.2.0/24 198.18.0.0/15
    198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4
    ::/128 ::/96 64:ff9b:1::/48 100::/64 ::ffff:0:0:0/96 2001::/32 2001:2::/48 2001:db8::/32 4000::/3
    5f00::/16 fe80::/10 ff00::/8
"""
"""Blocks of the IANA registries of special addresses that are not globally reachable, those that stood
for IPv4 addresses once, and what nobody has been given: all but the private ones."""
PRIVATE = """
    10.0.0.0/8 127.0.0.0/8 172.16.0.0/12 192.168.0.0/16 ::1/128 fc00::/7 fec0::/10
"""
PUBLIC = """
    1.0.0.0/8 8.0.0.0/8 93.0.0.0/8 185.0.0.0/8 2400::/12 2600::/12 2a00::/12 2003::/18
"""
"""Some that regional registries have given to networks."""


def inside(blocks: str) -> st.SearchStrategy[guard.Address]:
    """Any address of any of these blocks."""

    def of(block: Any) -> st.SearchStrategy[guard.Address]:
        last = block.num_addresses - 1
        return st.integers(0, last).map(lambda place: block[place])

    return st.sampled_from([ipaddress.ip_network(one) for one in blocks.split()]).flatmap(of)


@given(inside(NEVER))
def test_special_addresses_are_never_reached(address: guard.Address) -> None:
    if address == ipaddress.ip_address("::1"):
        return
    assert not guard.allowed(address, private=False)
    assert not guard.allowed(address, private=True)


@given(inside(PRIVATE))
def test_private_addresses_are_reached_by_the_operators_word(address: guard.Address) -> None:
    assert not guard.allowed(address, private=False)
    assert guard.allowed(address, private=True)


@given(inside(PUBLIC), st.booleans())
def test_addresses_of_networks_are_reached(address: guard.Address, private: bool) -> None:
    assert guard.allowed(address, private)


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**80 - 1), st.booleans())
def test_an_address_in_another_is_judged_as_it_is(inner: int, rest: int, private: bool) -> None:
    """Mapped, translated by the well-known prefix, and 6to4, whatever stands behind it there."""
    verdict = guard.allowed(ipaddress.IPv4Address(inner), private)
    for outer in (
        0xFFFF << 32 | inner,
        0x64FF9B << 96 | inner,
        0x2002 << 112 | inner << 80 | rest,
    ):
        assert guard.allowed(ipaddress.IPv6Address(outer), private) is verdict


@pytest.mark.parametrize(
    "address", ["64:ff9b:1::a9fe:a9fe", "::ffff:0:127.0.0.1", "::127.0.0.1", "240.0.0.1"]
)
@pytest.mark.parametrize("private", [False, True])
def test_ways_round_are_closed(address: str, private: bool) -> None:
    assert not guard.allowed(ipaddress.ip_address(address), private)


def test_the_address_that_was_checked_is_the_one_connected_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A name that answers with a public address once and with a private one ever after."""
    answers = iter([["93.184.216.34"], ["127.0.0.1"], ["127.0.0.1"]])
    asked: list[tuple[str, int]] = []

    def resolve(host: str, port: int, **_: Any) -> list[Any]:
        kind = socket.SOCK_STREAM
        return [(socket.AF_INET, kind, 6, "", (one, port)) for one in next(answers)]

    def dial(place: tuple[str, int], timeout: float) -> Any:
        asked.append(place)
        raise OSError

    monkeypatch.setattr("socket.getaddrinfo", resolve)
    monkeypatch.setattr("socket.create_connection", dial)
    with pytest.raises(SourceUnreachable):
        guard.connect(Connection("lake", "https://data.example.org"), 443)
    assert asked == [("93.184.216.34", 443)]
    with pytest.raises(SourceDenied):
        guard.connect(Connection("lake", "https://data.example.org"), 443)
    assert len(asked) == 1


def test_one_private_address_among_several_refuses_the_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def resolve(host: str, port: int, **_: Any) -> list[Any]:
        both = ("93.184.216.34", "10.0.0.1")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in both]

    monkeypatch.setattr("socket.getaddrinfo", resolve)
    with pytest.raises(SourceDenied, match="private"):
        guard.addresses(Connection("lake", "https://data.example.org"), 443)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root" / "deep").mkdir(parents=True)
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "root" / "deep" / "a.npy").write_text("here")
    (tmp_path / "root" / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "root" / "folder").symlink_to(tmp_path)
    (tmp_path / "root" / "inner").symlink_to(tmp_path / "root" / "deep")
    os.mkfifo(tmp_path / "root" / "pipe")
    return tmp_path / "root"


def test_a_file_below_a_root_is_opened(root: Path) -> None:
    with os.fdopen(guard.open_below(str(root), "deep/a.npy")) as file:
        assert file.read() == "here"


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("../secret", InvalidRequest),
        ("deep/../../secret", InvalidRequest),
        ("/etc/passwd", InvalidRequest),
        ("", InvalidRequest),
        ("a\x00b", InvalidRequest),
        ("nothing.npy", InvalidRequest),
        ("link", SourceDenied),
        ("folder/secret", SourceDenied),
        ("inner/a.npy", SourceDenied),
        ("deep", SourceDenied),
        ("pipe", SourceDenied),
    ],
)
def test_no_path_leads_out_of_a_root(root: Path, path: str, error: type[AssayError]) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(error):
        guard.open_below(str(root), path)
    assert len(os.listdir("/proc/self/fd")) == before
