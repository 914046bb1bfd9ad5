"""Will nearest-neighbour search behave on these rows?"""

from __future__ import annotations

from service.checks.search_hygiene.check import search_hygiene

__all__ = ["search_hygiene"]
