"""Job records in this process whose progress somebody watches."""

from __future__ import annotations

from collections.abc import Callable

from service.job import Progress
from service.storage.memory import MemoryJobs

Tell = Callable[[str, int, int], None]


class WatchedJobs(MemoryJobs):
    """Hands progress to whoever watches."""

    def __init__(self, tell: Tell) -> None:
        super().__init__()
        self._tell = tell

    def report_progress(self, job_id: str, progress: Progress) -> None:
        self._tell(progress.stage, progress.done, progress.total)
