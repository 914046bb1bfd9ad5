"""
Job records and gate runs in Redis or Valkey, changed by compare-and-set.

    assay:job:<id>        hash: version, json; expires after the retention once the job has ended
    assay:progress:<id>   how far it is, json; expires
    assay:done:<id>       hash: how much of each shard is done; expires
    assay:events:<id>     stream: kind, data; expires a day after the job has ended
    assay:starts:<id>     hash: how often each shard, and what follows them, was begun; expires
    assay:jobs:<project>  sorted set of job ids by microsecond of creation
    assay:active          ids of jobs that have not ended
    assay:active:<project>  those of one project
    assay:ended           hash: how many jobs have ended, by kind and state
    assay:gate:<id>       hash: version, json; expires
    assay:gates:<project> sorted set of gate ids by microsecond of creation
    assay:key:<hash>      hash: body, id; what an idempotency key is bound to; expires
    assay:key:<hash>:held who is answering a request with this key; expires soon
    assay:rate:<bucket>   hash: tokens, at; what is left of a minute's requests; expires when full
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Generic, cast

from redis import Redis
from redis.backoff import ExponentialWithJitterBackoff
from redis.retry import Retry

from service.allowance import WINDOW_S, Allowance
from service.context import Warned
from service.errors import IdempotencyConflict, IdempotencyInFlight, UnknownGate, UnknownJob
from service.events import (
    MOST,
    PINNED,
    After,
    Event,
    EventId,
    Kind,
    of_progress,
    of_warning,
    told_by,
)
from service.job import EVERY_JOB, GateRun, Job, Progress, Step, Wanted, tagged
from service.once import ANOTHER_BODY, HELD_S, KEPT_S, STILL_ANSWERED
from service.ports import Page, Record
from service.storage.listing import after, cut, position
from service.storage.scripts import (
    CLAIM,
    CREATE,
    CREATE_GATE,
    RAISE,
    RELEASE,
    SWAP,
    TAKE,
    TELL,
)

PROGRESS_TTL_S = TOLD_TTL_S = 86_400
PAGE = 200


def connect(url: str, retries: int = 120, timeout_s: float = 30) -> Redis:
    """
    A client that outlives an outage of a minute.

    redis-py's default timeout of 5 s would break every blocking read that is longer.
    """
    return Redis.from_url(
        url,
        socket_timeout=timeout_s,
        socket_connect_timeout=min(5, timeout_s),
        health_check_interval=30,
        retry=Retry(ExponentialWithJitterBackoff(base=0.2, cap=5), retries),
    )


class _Records(Generic[Record]):
    """Records of one type."""

    model: type[Record]
    prefix: str

    def __init__(self, redis: Redis, retention_s: int) -> None:
        self._redis, self._retention_s = redis, retention_s
        self._swap = redis.register_script(SWAP)

    def _key(self, record_id: str) -> str:
        return f"assay:{self.prefix}:{record_id}"

    def find(self, record_id: str) -> Record | None:
        data = cast("bytes | None", self._redis.hget(self._key(record_id), "json"))
        return None if data is None else self.model.model_validate_json(data)

    def change(self, record_id: str, move: Callable[[Record], Record | None]) -> Record | None:
        while True:
            old = self.find(record_id)
            moved = None if old is None else move(old)
            if moved is None or old is None:
                return None
            new: Record = moved.model_copy(update={"version": old.version + 1})
            if self._replace(old, new):
                return new

    def _replace(self, old: Record, new: Record) -> bool:
        """Whether the record was still the old one."""
        swapped = self._swap(
            keys=[self._key(new.id), *_sets(new.project), _events(new.id)],
            args=[
                old.version, new.version, new.model_dump_json(), *self._ending(new),
                *self._telling(new, old), TOLD_TTL_S,
            ],
        )  # fmt: skip
        return bool(swapped)

    def _telling(self, record: Record, before: Record) -> tuple[str, str]:
        """Id and data of what this change tells, if it is a job's."""
        return "", ""

    def _ending(self, record: Record) -> tuple[str | int, str, str]:
        """Retention, id and what to count it as, where this change ends a job; else empty."""
        return "", "", ""

    def _index(self, project: str) -> str:
        return f"assay:{self.prefix}s:{project}"

    def _page(
        self, project: str, limit: int, cursor: str | None, wanted: Callable[[Record], bool]
    ) -> Page[Record]:
        index, start = self._index(project), after(cursor)
        found: list[Record] = []
        while len(found) <= limit:
            highest = "+inf" if start is None else str(start[0])
            ids = cast(
                "list[bytes]",
                self._redis.zrange(
                    index, highest, "-inf", desc=True, byscore=True, offset=0, num=PAGE
                ),
            )
            with self._redis.pipeline(transaction=False) as pipe:
                for record_id in ids:
                    pipe.hget(self._key(record_id.decode()), "json")
                stored = pipe.execute()
            if gone := [one for one, data in zip(ids, stored, strict=True) if data is None]:
                self._redis.zrem(index, *gone)
            records = [self.model.model_validate_json(data) for data in stored if data is not None]
            fresh = [one for one in records if start is None or position(one) < start]
            found += [one for one in fresh if wanted(one)]
            if not fresh and not gone:
                break
            start = position(fresh[-1]) if fresh else start
        return cut(found, limit, cursor, position)


class RedisJobs(_Records[Job]):
    """Job records."""

    model = Job
    prefix = "job"

    def __init__(self, redis: Redis, retention_s: int, most: int = MOST) -> None:
        super().__init__(redis, retention_s)
        self._most = most
        self._tell = redis.register_script(TELL)
        self._raise = redis.register_script(RAISE)
        self._create = redis.register_script(CREATE)

    def create(self, job: Job) -> bool:
        retention, _, counted = self._ending(job)
        created = self._create(
            keys=[
                self._key(job.id), *_sets(job.project), self._index(job.project), _events(job.id),
            ],
            args=[
                job.version, job.model_dump_json(), retention, job.id, counted, position(job)[0],
                *self._telling(job), TOLD_TTL_S,
            ],
        )  # fmt: skip
        return bool(created)

    def _telling(self, record: Job, before: Job | None = None) -> tuple[str, str]:
        event = told_by(record, before)
        return ("", "") if event is None else (str(event.id), event.data)

    def unfinished(self, project: str) -> int:
        return int(self._redis.scard(f"assay:active:{project}"))

    def _ending(self, job: Job) -> tuple[str | int, str, str]:
        if not job.state.terminal:
            return "", "", ""
        return self._retention_s, job.id, f"{job.kind}:{job.state.value}"

    def get(self, project: str, job_id: str) -> Job:
        job = self.find(job_id)
        if job is None or job.project != project:
            raise UnknownJob(f"There is no job `{job_id}`.")
        return job

    def find_all(self, job_ids: Sequence[str]) -> list[Job | None]:
        """Jobs of any project in one round trip; None where there is no record."""
        with self._redis.pipeline(transaction=False) as pipe:
            for job_id in job_ids:
                pipe.hget(self._key(job_id), "json")
            stored = pipe.execute()
        return [None if data is None else Job.model_validate_json(data) for data in stored]

    def page(
        self, project: str, limit: int, cursor: str | None, wanted: Wanted = EVERY_JOB
    ) -> Page[Job]:
        return self._page(project, limit, cursor, wanted.admits)

    def active(self) -> list[str]:
        return [
            job_id.decode() for job_id in cast("set[bytes]", self._redis.smembers("assay:active"))
        ]

    def trim(self, older_than: datetime) -> None:
        """Take jobs that have expired by now out of every project's index."""
        for index in self._redis.scan_iter("assay:jobs:*"):
            self._redis.zremrangebyscore(index, "-inf", older_than.timestamp() * 1_000_000)

    def retire(self, job_id: str) -> None:
        """Take an ended, or expired, job out of the active set."""
        self._redis.srem("assay:active", job_id)

    def ended(self) -> dict[tuple[str, str], int]:
        counts = cast("dict[bytes, bytes]", self._redis.hgetall("assay:ended"))
        result = {}
        for key, count in counts.items():
            kind, _, state = key.decode().partition(":")
            result[kind, state] = int(count)
        return result

    def report_progress(self, job_id: str, progress: Progress) -> None:
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.set(f"assay:progress:{job_id}", progress.model_dump_json(), ex=PROGRESS_TTL_S)
            self._report(job_id, *of_progress(progress), pipe)
            pipe.execute()

    def report_warning(self, job_id: str, warned: Warned) -> None:
        self._report(job_id, *of_warning(warned))

    def _report(self, job_id: str, kind: Kind, data: str, client: Redis | None = None) -> None:
        self._tell(
            keys=[self._key(job_id), "assay:active", _events(job_id)],
            args=[job_id, kind.value, data, self._most, PINNED],
            client=client,
        )

    def events(self, after: After) -> dict[str, list[Event]]:
        with self._redis.pipeline(transaction=False) as pipe:
            for job_id, known in after.items():
                pipe.xrange(_events(job_id), min=f"({known}")
            told = pipe.execute()
        return {
            job_id: [_event(one, fields) for one, fields in entries]
            for job_id, entries in zip(after, told, strict=True)
            if entries
        }

    def progress(self, job_id: str) -> Progress | None:
        data = cast("bytes | None", self._redis.get(f"assay:progress:{job_id}"))
        return None if data is None else Progress.model_validate_json(data)

    def begin(self, job_id: str, step: Step) -> int:
        key = f"assay:starts:{job_id}"
        with self._redis.pipeline(transaction=True) as pipe:
            pipe.hincrby(key, step.of(job_id), 1)
            pipe.expire(key, PROGRESS_TTL_S)
            return int(pipe.execute()[0])

    def report_done(self, job_id: str, shard: int, done: float) -> dict[int, float]:
        flat = cast(
            "list[bytes]",
            self._raise(keys=[f"assay:done:{job_id}"], args=[shard, done, PROGRESS_TTL_S]),
        )
        return _done(dict(zip(flat[::2], flat[1::2], strict=True)))

    def done(self, job_id: str) -> dict[int, float]:
        return _done(cast("dict[bytes, bytes]", self._redis.hgetall(f"assay:done:{job_id}")))


def _done(stored: Mapping[bytes, bytes]) -> dict[int, float]:
    return {int(shard): float(done) for shard, done in stored.items()}


class RedisGates(_Records[GateRun]):
    """Gate runs."""

    model = GateRun
    prefix = "gate"

    def __init__(self, redis: Redis, retention_s: int) -> None:
        super().__init__(redis, retention_s)
        self._create = redis.register_script(CREATE_GATE)

    def create(self, run: GateRun) -> bool:
        at = position(run)[0]
        created = self._create(
            keys=[self._key(run.id), self._index(run.project)],
            args=[
                run.version, run.model_dump_json(), self._retention_s, run.id, at,
                at - self._retention_s * 1_000_000,
            ],
        )  # fmt: skip
        return bool(created)

    def get(self, project: str, run_id: str) -> GateRun:
        run = self.find(run_id)
        if run is None or run.project != project:
            raise UnknownGate(f"There is no gate run `{run_id}`.")
        return run

    def page(
        self, project: str, limit: int, cursor: str | None, tag: tuple[str, str] | None
    ) -> Page[GateRun]:
        return self._page(project, limit, cursor, lambda run: tagged(run, tag))


class RedisClaims:
    """Idempotency keys; both steps are one script each."""

    def __init__(self, redis: Redis, kept_s: float = KEPT_S, held_s: float = HELD_S) -> None:
        self._kept_ms, self._held_ms = round(1000 * kept_s), round(1000 * held_s)
        self._claim = redis.register_script(CLAIM)
        self._release = redis.register_script(RELEASE)

    def claim(self, key: str, body_sha256: str, new_id: str, holder: str) -> str:
        found = cast(
            "bytes",
            self._claim(
                keys=_claim_keys(key),
                args=[body_sha256, new_id, holder, self._kept_ms, self._held_ms],
            ),
        ).decode()
        if found == "conflict":
            raise IdempotencyConflict(ANOTHER_BODY)
        if found == "in-flight":
            raise IdempotencyInFlight(STILL_ANSWERED)
        return found

    def release(self, key: str, holder: str, *, forget: bool) -> None:
        self._release(keys=_claim_keys(key), args=[holder, int(forget)])


class RedisRates:
    """Counts requests by the clock of the server, for all APIs together."""

    def __init__(self, redis: Redis) -> None:
        self._take = redis.register_script(TAKE)

    def take(self, bucket: str, per_minute: int) -> Allowance:
        answer = self._take(keys=[f"assay:rate:{bucket}"], args=[per_minute, WINDOW_S])
        granted, tokens = cast("tuple[int, bytes]", answer)
        return Allowance.of(bool(granted), float(tokens), per_minute)


def _claim_keys(key: str) -> list[str]:
    return [f"assay:key:{key}", f"assay:key:{key}:held"]


def _events(job_id: str) -> str:
    """Where a job's events are."""
    return f"assay:events:{job_id}"


def _event(event_id: bytes, fields: Mapping[bytes, bytes]) -> Event:
    change, _, place = event_id.decode().partition("-")
    data = fields[b"data"].decode()
    return Event(EventId(int(change), int(place)), Kind(fields[b"kind"].decode()), data)


def _sets(project: str) -> list[str]:
    """Where unfinished and ended jobs are counted."""
    return ["assay:active", f"assay:active:{project}", "assay:ended"]
