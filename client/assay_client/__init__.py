"""
Client of Assay, a service that tests embeddings before they are trusted.

    with Assay() as assay:
        report = assay.run({"kind": "geometry", "inputs": {"vectors": {"path": "rows.npy"}}})
        print(report["readings"])

`AsyncAssay` is the same to be awaited.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from assay_client.api import Assay
    from assay_client.async_api import AsyncAssay
    from assay_client.problems import AssayError

__all__ = ["Assay", "AssayError", "AsyncAssay"]


def __getattr__(name: str) -> Any:
    """Load on first use, so that `assay --help` does not pay for HTTP."""
    if name == "Assay":
        from assay_client.api import Assay

        return Assay
    if name == "AsyncAssay":
        from assay_client.async_api import AsyncAssay

        return AsyncAssay
    if name == "AssayError":
        from assay_client.problems import AssayError

        return AssayError
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
