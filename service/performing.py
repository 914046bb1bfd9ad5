"""Run a job to its end, once, whatever dies on the way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

import structlog

from service.answering import Work, answer, load
from service.blocks import Plan, join
from service.context import Context
from service.errors import AssayError, Internal, OutOfMemory, Unavailable, WorkerLost
from service.job import COMBINE, WHOLE, Failure, Job, Pool, State, Step, now
from service.part import Notes, Part, reading
from service.progress import ShardThrottle, Throttle, of_shards, tell_shard
from service.services import Services

FEWEST = 2
"""Blocks, and workers for shards, below which one process does all of a job."""
SHARES_PER_WORKER = 2
"""So that a worker that is quicker takes more of them, and less is lost with one."""
log = structlog.get_logger()


def perform(services: Services, job_id: str) -> None:
    """
    Run a job to its end, or hand it out in shards. Safe to call any number of times, at once or after
    any crash.

    The report is stored before the job succeeds, and only once; a job that has ended is left alone.
    """

    def begin(newest: Job) -> Job | None:
        if newest.awaiting is not None:
            return None
        if newest.attempts < services.attempts:
            return _begin(newest)
        return newest.moved(State.failed, problem=Failure.of(lost(services)))

    job = services.jobs.change(job_id, begin)
    if job is None or job.state is not State.running:
        return
    carefully(services, job, WHOLE, job.attempts, lambda: _perform(services, job))


def perform_shard(services: Services, job_id: str, shard: int) -> None:
    """Compute and store one part of a job; whoever sees that it was the last one has them combined."""
    step = Step("shard", shard)
    if begun := _begin_step(services, job_id, step):
        job, start = begun
        carefully(services, job, step, start, lambda: _shard(services, job, shard))


def combine(services: Services, job_id: str) -> None:
    """Make the report of a job from its parts, computing those that nobody has stored."""
    if begun := _begin_step(services, job_id, COMBINE):
        job, start = begun
        carefully(services, job, COMBINE, start, lambda: _combine(services, job))


def hand_out(services: Services, job: Job) -> None:
    """Queue whatever is left to do for a job that has a plan."""
    done = services.jobs.done(job.id)
    for shard in _shards(job):
        if done.get(shard, 0.0) < 1:
            services.queue.enqueue(job, Step("shard", shard))
    _follow(services, job, done)


def _begin(job: Job) -> Job | None:
    return job.moved(
        State.running,
        started_at=job.started_at or now(),
        attempt_started_at=job.attempt_started_at if job.plan else now(),
        attempts=job.attempts + 1,
    )


def lost(services: Services) -> WorkerLost:
    """Every process that began a step has died."""
    return WorkerLost(f"{services.attempts} processes died while running it.")


def _begin_step(services: Services, job_id: str, step: Step) -> tuple[Job, int] | None:
    """The job, and how often the step has been begun now; None if there is nothing to do."""
    job = services.jobs.find(job_id)
    if job is None or job.state is not State.running or job.plan is None:
        return None
    start = services.jobs.begin(job_id, step)
    if start > services.attempts:
        fail(services, job_id, lost(services))
        return None

    def clock(newest: Job) -> Job | None:
        if newest.attempt_started_at is not None and start == 1:
            return None
        return newest.moved(State.running, attempt_started_at=now())

    return services.jobs.change(job_id, clock) or job, start


def _perform(services: Services, job: Job) -> None:
    if job.plan is None:
        if job.cache and services.reports.get(job.project, job.request_digest) is not None:
            _succeed(services, job)  # the same request was answered while this one waited
            return
        work = load(services, job, Throttle(services.jobs, job))
        job = _planned(services, work)
        if job.state is not State.running:
            return
        if job.plan is None:
            answer(services, work, lambda: work.check.run(work.context, work.inputs, work.params))
            _succeed(services, job)
            return
    hand_out(services, job)


def _planned(services: Services, work: Work) -> Job:
    """The job with the plan of whoever was first, or without one where shards would not help."""
    job, blocks = work.job, work.check.blocks(work.inputs, work.params)
    workers = services.queue.workers(Pool.shards) if blocks >= FEWEST else 0
    if workers < FEWEST:
        return job
    plan = Plan(blocks=blocks, shards=min(blocks, SHARES_PER_WORKER * workers))

    def write(newest: Job) -> Job | None:
        if newest.plan is not None:
            return None
        return newest.moved(State.running, plan=plan, attempt_started_at=None)

    written = services.jobs.change(job.id, write)
    if written is None:
        return services.jobs.get(job.project, job.id)
    log.info("job cut", job=job.id, kind=job.kind, blocks=plan.blocks, shards=plan.shards)
    services.jobs.report_progress(job.id, of_shards(written, 0.0))
    return written


def _shards(job: Job) -> range:
    return range(job.plan.shards if job.plan else 0)


def _shard(services: Services, job: Job, shard: int) -> None:
    file = services.parts.open(job.id, shard)
    if file is not None:
        file.close()
    else:
        work = load(services, job, ShardThrottle(services.jobs, job, shard))
        services.parts.put(job.id, shard, _part(work, shard).to_bytes())
    _follow(services, job, tell_shard(services.jobs, job, shard, 1.0))


def _follow(services: Services, job: Job, done: Mapping[int, float]) -> None:
    if complete(job, done):
        services.queue.enqueue(job, COMBINE)


def complete(job: Job, done: Mapping[int, float]) -> bool:
    """Whether all parts of a job are stored."""
    return all(done.get(shard, 0.0) >= 1 for shard in _shards(job))


def _part(work: Work, shard: int) -> Part:
    if work.job.plan is None:
        raise Internal("A part needs a plan.")
    context = Context(work.context.seed, work.context.threads, work.context.progress)
    started = time.perf_counter()
    arrays = work.check.part(context, work.inputs, work.params, work.job.plan.share(shard))
    return Part(Notes.of(context, time.perf_counter() - started), arrays)


def _combine(services: Services, job: Job) -> None:
    work = load(services, job, Throttle(services.jobs, job))
    with ExitStack() as stack:
        parts = [stack.enter_context(_stored(services, work, shard)) for shard in _shards(job)]
        arrays = join([part.arrays for part in parts])
    answer(
        services,
        work,
        lambda: work.check.combine(work.context, work.inputs, work.params, arrays),
        [part.notes for part in parts],
    )
    _succeed(services, job)


@contextmanager
def _stored(services: Services, work: Work, shard: int) -> Iterator[Part]:
    file = services.parts.open(work.job.id, shard)
    if file is None:
        part = _part(work, shard)
        services.parts.put(work.job.id, shard, part.to_bytes())
        yield part
        return
    with file, reading(file) as part:
        yield part


def _succeed(services: Services, job: Job) -> None:
    """End a job whose report is stored."""
    if services.jobs.change(job.id, lambda newest: newest.moved(State.succeeded)):
        log.info("job succeeded", job=job.id, kind=job.kind)


def fail(services: Services, job_id: str, error: AssayError) -> None:
    """End a job without a report, unless it has ended already."""
    services.jobs.change(job_id, lambda job: job.moved(State.failed, problem=Failure.of(error)))


def carefully(
    services: Services, job: Job, step: Step, start: int, work: Callable[[], None]
) -> None:
    """Do the work of a step; what it raises fails the job, or has the queue run the step again."""
    bound = log.bind(job=job.id, kind=job.kind, step=step.of(job.id), start=start)
    try:
        work()
    except AssayError as error:
        bound.info("job failed", code=error.code)
        fail(services, job.id, error)
    except services.outages as error:
        bound.exception("a part did not answer")
        if start < services.attempts:  # the queue runs it again
            time.sleep(services.pauses_s[min(start, len(services.pauses_s)) - 1])
            raise
        fail(services, job.id, Unavailable(f"{type(error).__name__}, {start} times."))
    except MemoryError:
        bound.warning("job out of memory", memory_bytes=job.memory_bytes)
        fail(services, job.id, OutOfMemory(f"The job may use {job.memory_bytes} bytes."))
    except Exception as error:
        bound.exception("job broke")
        fail(services, job.id, Internal(f"{type(error).__name__} in `{job.kind}`."))
