"""HTTP by httpx to addresses that were looked at; the name stays what is asked for and verified."""

from __future__ import annotations

import ssl

import httpx

from service.sources import guard
from service.sources.connection import Connection


class Checked(httpx.BaseTransport):
    """
    Sends every request to a checked address of a connection, whatever its name leads to by then.

    TLS is spoken to, and its certificate verified against, the name, which `Host` holds too. An option
    `verify` of the connection is a file of certificates.
    """

    def __init__(self, connection: Connection, default_port: int) -> None:
        self._addresses = guard.addresses(connection, default_port)
        authorities = connection.options.get("verify")
        self._dial = httpx.HTTPTransport(
            verify=ssl.create_default_context(cafile=authorities) if authorities else True,
            trust_env=False,
        )

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        named = request.url
        request.extensions = {
            **request.extensions,
            "sni_hostname": named.raw_host.decode("ascii").strip("[]"),
        }
        while True:
            request.url = named.copy_with(host=self._addresses[0])
            try:
                return self._dial.handle_request(request)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                if len(self._addresses) == 1:
                    raise
                del self._addresses[0]  # the next may answer; this one has not

    def close(self) -> None:
        self._dial.close()
