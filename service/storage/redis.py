"""
Job records and gate runs in Redis or Valkey, changed by compare-and-set.

    assay:job:<id>        hash: version, json; expires after the retention once the job has ended
    assay:progress:<id>   how far it is, json; expires
    assay:done:<id>       hash: how much of each shard is done; expires
    assay:starts:<id>     hash: how often each shard, and what follows them, was begun; expires
    assay:jobs:<project>  sorted set of job ids by microsecond of creation
    assay:active          ids of jobs that have not ended
    assay:ended           hash: how many jobs have ended, by kind and state
    assay:gate:<id>       hash: version, json; expires
    assay:gates:<project> sorted set of gate ids by microsecond of creation
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Generic, cast

from redis import Redis
from redis.backoff import ExponentialWithJitterBackoff
from redis.retry import Retry

from service.errors import UnknownGate, UnknownJob
from service.job import GateRun, Job, Progress, State, Step
from service.ports import Page, Record
from service.storage.memory import format_cursor, matches, parse_cursor, position, tagged

PROGRESS_TTL_S = 86_400
PAGE = 200
SWAP = """
if redis.call('HGET', KEYS[1], 'version') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'version', ARGV[2], 'json', ARGV[3])
if ARGV[4] ~= '' then
  redis.call('EXPIRE', KEYS[1], ARGV[4])
  redis.call('SREM', KEYS[2], ARGV[5])
  redis.call('HINCRBY', KEYS[3], ARGV[6], 1)
end
return 1
"""

RAISE = """
local known = tonumber(redis.call('HGET', KEYS[1], ARGV[1]) or '0')
if tonumber(ARGV[2]) >= known then redis.call('HSET', KEYS[1], ARGV[1], ARGV[2]) end
redis.call('EXPIRE', KEYS[1], ARGV[3])
return redis.call('HGETALL', KEYS[1])
"""


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

    def _write(self, record: Record) -> None:
        self._redis.hset(
            self._key(record.id),
            mapping={"version": record.version, "json": record.model_dump_json()},
        )

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
            if self._swap(
                keys=[self._key(record_id), "assay:active", "assay:ended"],
                args=[old.version, new.version, new.model_dump_json(), *self._ending(new)],
            ):
                return new

    def _ending(self, record: Record) -> tuple[str | int, str, str]:
        """Retention, id and what to count it as, where this change ends a job; else empty."""
        return "", "", ""

    def _index(self, project: str) -> str:
        return f"assay:{self.prefix}s:{project}"

    def _page(
        self, project: str, limit: int, cursor: str | None, wanted: Callable[[Record], bool]
    ) -> Page[Record]:
        index = self._index(project)
        after = None if cursor is None else parse_cursor(cursor)
        found: list[Record] = []
        while len(found) <= limit:
            highest = "+inf" if after is None else str(after[0])
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
            fresh = [one for one in records if after is None or position(one) < after]
            found += [one for one in fresh if wanted(one)]
            if not fresh and not gone:
                break
            after = position(fresh[-1]) if fresh else after
        items = found[:limit]
        return Page(items, format_cursor(items[-1]) if len(found) > limit else None)


class RedisJobs(_Records[Job]):
    """Job records."""

    model = Job
    prefix = "job"

    def __init__(self, redis: Redis, retention_s: int) -> None:
        super().__init__(redis, retention_s)
        self._raise = redis.register_script(RAISE)

    def create(self, job: Job) -> None:
        with self._redis.pipeline(transaction=True) as pipe:
            pipe.hset(
                self._key(job.id), mapping={"version": job.version, "json": job.model_dump_json()}
            )
            pipe.zadd(self._index(job.project), {job.id: position(job)[0]})
            if job.state.terminal:
                pipe.expire(self._key(job.id), self._retention_s)
                pipe.hincrby("assay:ended", f"{job.kind}:{job.state.value}", 1)
            else:
                pipe.sadd("assay:active", job.id)
            pipe.execute()

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
        self,
        project: str,
        limit: int,
        cursor: str | None,
        state: State | None,
        kind: str | None,
        tag: tuple[str, str] | None,
    ) -> Page[Job]:
        return self._page(project, limit, cursor, lambda job: matches(job, state, kind, tag))

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
        self._redis.set(f"assay:progress:{job_id}", progress.model_dump_json(), ex=PROGRESS_TTL_S)

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

    def create(self, run: GateRun) -> None:
        at, index = position(run)[0], self._index(run.project)
        self._write(run)
        with self._redis.pipeline(transaction=True) as pipe:
            pipe.expire(self._key(run.id), self._retention_s)
            pipe.zadd(index, {run.id: at})
            pipe.zremrangebyscore(index, "-inf", at - self._retention_s * 1_000_000)
            pipe.execute()

    def get(self, project: str, run_id: str) -> GateRun:
        run = self.find(run_id)
        if run is None or run.project != project:
            raise UnknownGate(f"There is no gate run `{run_id}`.")
        return run

    def page(
        self, project: str, limit: int, cursor: str | None, tag: tuple[str, str] | None
    ) -> Page[GateRun]:
        return self._page(project, limit, cursor, lambda run: tagged(run, tag))
