"""The index of an object store made again from what is stored, which is the truth."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from service.storage.object_baselines import ObjectBaselines
from service.storage.objects import ObjectDatasets, projects

EVERY = 1 << 30


@dataclass(frozen=True)
class Reindexed:
    """What a project holds, and what its index lacked."""

    project: str
    datasets: int
    baselines: int
    reports: int
    restored: int
    """Contents that led to no dataset, and do now."""
    repeated: int
    """Datasets whose content another, older one has too; both stay."""
    dropped: int
    """Bodies of uploads that led to no dataset."""
    damaged: tuple[str, ...] = ()
    """Datasets whose record cannot be read, left as they are."""


def reindex(root: Path) -> Iterator[Reindexed]:
    """Every project in turn. Safe beside a running service, and any number of times."""
    datasets, baselines = ObjectDatasets(root), ObjectBaselines(root)
    for project in projects(root):
        folder = root / project
        records = datasets.page(project, EVERY, None).items
        known = [datasets.claim(project, record) for record in reversed(records)]
        yield Reindexed(
            project=project,
            datasets=len(records),
            baselines=len(baselines.names(project)),
            reports=_count(folder / "reports"),
            restored=sum(one is None for one in known),
            repeated=sum(
                one is not None and one.id != record.id
                for one, record in zip(known, reversed(records), strict=True)
            ),
            dropped=sum(
                datasets.forget_body(project, one.name) for one in _files(folder / "bodies")
            ),
            damaged=datasets.damaged(project),
        )


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_file()] if folder.is_dir() else []


def _count(folder: Path) -> int:
    return len(_files(folder))
