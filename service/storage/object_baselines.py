"""Baselines in an object store; see `storage.objects`."""

from __future__ import annotations

import re
from pathlib import Path

import obstore
from obstore.exceptions import AlreadyExistsError
from obstore.store import LocalStore

from service.baseline import BASELINE_NAME, Baseline
from service.errors import UnknownBaseline
from service.job import now


class ObjectBaselines:
    """
    Baselines in the same store: they outlive Redis.

    A version is written once; who finds it taken looks again.
    """

    def __init__(self, root: Path) -> None:
        self._store = LocalStore(root, mkdir=True)

    def set(self, project: str, name: str, dataset: str, gate: str | None) -> Baseline:
        while True:
            versions = self._versions(project, name)
            if versions:
                newest = self._read(project, name, versions[-1])
                if newest.dataset == dataset:
                    return newest
            made = Baseline(
                name=name,
                dataset=dataset,
                version=versions[-1] + 1 if versions else 1,
                gate=gate,
                set_at=now(),
            )
            try:
                obstore.put(
                    self._store,
                    _baseline(project, name, made.version),
                    made.model_dump_json().encode(),
                    mode="create",
                )
            except AlreadyExistsError:
                continue
            return made

    def get(self, project: str, name: str) -> Baseline:
        return self.history(project, name, 1)[0]

    def history(self, project: str, name: str, limit: int) -> list[Baseline]:
        versions = self._versions(project, name)
        if not versions:
            raise UnknownBaseline(f"There is no baseline `{name}`.")
        return [self._read(project, name, version) for version in versions[: -limit - 1 : -1]]

    def names(self, project: str) -> list[str]:
        found = obstore.list_with_delimiter(self._store, prefix=f"{project}/baselines")
        return sorted(path.rpartition("/")[2] for path in found["common_prefixes"])

    def _versions(self, project: str, name: str) -> list[int]:
        if not re.fullmatch(BASELINE_NAME, name):
            return []
        found = obstore.list_with_delimiter(self._store, prefix=f"{project}/baselines/{name}")
        return sorted(int(item["path"].rpartition("/")[2]) for item in found["objects"])

    def _read(self, project: str, name: str, version: int) -> Baseline:
        data = obstore.get(self._store, _baseline(project, name, version)).bytes()
        return Baseline.model_validate_json(bytes(data))


def _baseline(project: str, name: str, version: int) -> str:
    return f"{project}/baselines/{name}/{version}"
