"""The embedded server answers wherever its folder is."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from redis import Redis

from service.errors import InvalidRequest
from workers import embedded

NAMES = ["plain-1.a_b~c", "x y", "a=b", "über", "a#b", "a?b=1", "a%20b", "a\tb"]


@pytest.mark.parametrize("name", NAMES)
def test_clients_and_workers_understand_a_server_in_any_folder(
    name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A worker reads its own address from CLIENT INFO, which is split at spaces and at `=`."""
    folder = tmp_path_factory.mktemp("of") / name
    address = embedded.url(folder)
    process = subprocess.Popen(embedded.command(folder))
    try:
        embedded.wait_until_ready(address, 10)
        with Redis.from_url(address) as client:
            assert client.client_info()["id"]
            assert client.client_list()[0]["id"]
            assert client.config_get("dir")["dir"] == str(folder.resolve())
    finally:
        process.terminate()
        process.wait(10)


def test_only_a_plain_and_short_path_is_used_directly() -> None:
    assert embedded.socket_path(Path("/home/me/.assay/server")).parent.name == "server"
    for folder in ("/home/x y/server", "/home/" + "long" * 30):
        assert embedded.socket_path(Path(folder)).parent.name.startswith("assay-")


def test_a_temporary_folder_that_cannot_hold_the_socket_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded.tempfile, "gettempdir", lambda: str(tmp_path / "x y"))
    with pytest.raises(InvalidRequest, match=r"x y.*TMPDIR"):
        embedded.socket_path(Path("/home/x y/server"))
