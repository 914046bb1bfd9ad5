"""Hosts that a library which opens object stores by itself will be led to, looked at beforehand."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from service.errors import SourceDenied
from service.sources import guard
from service.sources.connection import Connection

ENDPOINT = re.compile(r"endpoint|base_url")
"""Options that name where a store is: libraries know each by several names."""
PROXY = re.compile(r"proxy_url")
READ = re.compile(r"(?:aws|google|azure)_")
"""Variables of the environment that libraries take for options."""


def refuse_addresses(connection: Connection, options: Mapping[str, str]) -> None:
    """
    SourceDenied if the store of a connection, or the way to it, has an address that may not be reached.

    The library looks names up again when it connects: what they lead to by then is not seen here.
    """
    told = {key.lower(): value for key, value in os.environ.items() if READ.match(key.lower())}
    told |= {key.lower(): value for key, value in options.items()}
    default = _default(connection, told)
    endpoints = [value for key, value in told.items() if ENDPOINT.search(key)]
    proxies = [value for key, value in told.items() if PROXY.search(key)]
    for url in [*(endpoints or [default]), *proxies]:
        parts = urlsplit(url if "://" in url else f"https://{url}")
        if parts.scheme != "https" and not connection.private:
            raise SourceDenied(
                f"Connection `{connection.name}` must speak https; http is for private addresses."
            )
        guard.addresses(connection.to(parts.geturl()), 443 if parts.scheme == "https" else 80)


def _default(connection: Connection, told: Mapping[str, str]) -> str:
    """Where a store is if nothing says so."""
    scheme = connection.parts.scheme
    if scheme == "s3":
        region = told.get("aws_region") or told.get("region")
        return f"s3.{region}.amazonaws.com" if region else "s3.amazonaws.com"
    if scheme == "gs":
        return "storage.googleapis.com"
    if scheme == "az":
        account = told.get("azure_storage_account_name") or told.get("account_name", "")
        return f"{account}.blob.core.windows.net"
    raise SourceDenied(f"Connection `{connection.name}` leads to no object store (`{scheme}`).")
