"""Which tokens of which requests are computed next: continuous batching with chunked prefill, one step at a time.

Each step is one forward pass. It holds the next token of every request that is decoding, then chunks of prompts, in
order of arrival, until the step's budget of tokens is full: a long prompt slows the others down and never stops them.
A prompt's pages are committed as they are computed, an answer's when it ends.

A request is admitted only if its worst case (whole prompt, longest answer) fits beside the worst cases of those that
run, so the pool never runs dry in the middle and nobody is thrown out to be computed again. Cached pages do not count:
they are evicted as pages are needed.

Everything here belongs to one thread, which may be any: see `engine.Engine` for the one that a server uses.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

import torch

from localmodel.engine.attention import Span
from localmodel.engine.cache.core import KVCache, Lease
from localmodel.engine.cache.identity import PAGE_TOKENS, Root
from localmodel.engine.cache.pages import Counts
from localmodel.engine.errors import BadBatch, BadLogits
from localmodel.engine.guide import Guide
from localmodel.engine.kv import PagedKV
from localmodel.engine.model import PagedModel
from localmodel.engine.sampling import Sampler
from localmodel.engine.threads import Pace

End: TypeAlias = Literal["end", "enough", "length"]
"""Why an answer is over: the model ended it, the listener had enough, or `max_tokens` was reached."""


class Listener(Protocol):
    """Who is told of one request's progress, from the scheduler's thread. What it raises fails this request only."""

    def claimed(self, reused: int) -> None:
        """The request is admitted; the KV of its first `reused` tokens is taken from the cache."""
        ...

    def started(self) -> None:
        """The whole prompt is computed and others can reuse it from now on."""
        ...

    def token(self, token: int) -> bool:
        """The answer's next token (never one that ends it). True: that is enough."""
        ...

    def ended(self, reason: End) -> None:
        """The answer is complete."""
        ...

    def failed(self, error: Exception) -> None:
        """There will be no more."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One request: prompt, how much of it may be reused at most, and how to answer.

    max_tokens 0 computes the prompt and answers nothing. `ends` are the tokens that end an answer.
    """

    root: Root
    tokens: Sequence[int]
    reuse: int
    max_tokens: int
    ends: frozenset[int]
    sampler: Sampler
    listener: Listener
    guide: Guide | None = None

    @property
    def pages(self) -> int:
        """Pages in the worst case; one more is held while a shared tail is copied."""
        return -(-(len(self.tokens) + self.max_tokens) // PAGE_TOKENS) + 1


@dataclass(slots=True, eq=False)
class Run:
    """An admitted job: `tokens` are prompt and answer so far, of which the first `done` are computed."""

    job: Job
    lease: Lease
    tokens: list[int]
    done: int
    begun: bool = False

    @property
    def pending(self) -> int:
        """Tokens whose KV is still to be computed."""
        return len(self.tokens) - self.done

    @property
    def answered(self) -> int:
        """Tokens of the answer so far."""
        return len(self.tokens) - len(self.job.tokens)


Batch: TypeAlias = Sequence[tuple[Run, int]]
"""Requests of one step, each with the number of its tokens."""


class Act(Protocol):
    """Something done for one request."""

    def __call__(self, run: Run, /) -> object:
        """Do it."""
        ...


@dataclass(slots=True)
class Scheduler:
    """See the module. `budget` is the number of tokens of one step, twice as many while nobody is decoding; `batch` is
    the number of requests that run at once.

    `computed` counts the prompts' tokens that went through the model.
    """

    model: PagedModel
    kv: PagedKV
    cache: KVCache
    budget: int
    batch: int
    pace: Pace = field(default_factory=lambda: Pace(torch.get_num_threads(), torch.set_num_threads))
    waiting: "deque[Job]" = field(default_factory=deque)
    running: list[Run] = field(default_factory=list)
    computed: int = 0

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self.waiting and not self.running

    @property
    def counts(self) -> Counts:
        """Pages by state."""
        return self.cache.counts

    def submit(self, job: Job) -> None:
        """Queue a request. Raises BadBatch if it can never run."""
        if not job.tokens or len(job.tokens) + job.max_tokens > self.model.config.context:
            window = self.model.config.context
            raise BadBatch(f"{len(job.tokens)} tokens and {job.max_tokens} to come do not fit the window of {window}")
        if job.pages > self.cache.counts.total:
            raise BadBatch(f"a request of {job.pages} pages cannot run in a pool of {self.cache.counts.total}")
        self.waiting.append(job)

    def cancel(self, job: Job) -> None:
        """Forget a request, wherever it is; its pages are free at once. Its listener is told nothing."""
        if job in self.waiting:
            self.waiting.remove(job)
        for run in self.running:
            if run.job is job:
                self._leave(run)
                return

    def abandon(self, error: Exception) -> None:
        """Tell everybody that there will be no more; pages are left as they are."""
        for job in [*(run.job for run in self.running), *self.waiting]:
            job.listener.failed(error)
        self.running.clear()
        self.waiting.clear()

    def step(self) -> None:
        """Admit who fits, then compute one batch."""
        with torch.inference_mode():
            self._admit()
            batch = self._batch()
            if batch:
                self._advance(batch)

    def _advance(self, batch: Batch) -> None:
        try:
            logits = self._compute(batch)
        except Exception as error:
            for run, _ in batch:
                self._fail(run, error)
            return
        ready = [run for run, _ in batch if not run.pending]
        for run in [run for run in ready if not run.begun]:
            self._begin(run)
        self._answer(ready, logits)

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self.batch:
            promised = sum(run.job.pages for run in self.running)
            if promised + self.waiting[0].pages > self.cache.counts.total:
                return
            job = self.waiting.popleft()
            # The last token is always computed: its logits begin the answer.
            limit = min(job.reuse, len(job.tokens) - 1)
            try:
                lease = self.cache.lease(job.root, job.tokens, limit=limit)
            except Exception as error:
                job.listener.failed(error)
                continue
            run = Run(job, lease, list(job.tokens), lease.matched)
            self.running.append(run)
            self._tell(run, lambda one: one.job.listener.claimed(one.lease.matched))

    def _batch(self) -> Batch:
        """(request, number of its tokens) of this step: who decodes first, then prompts in order of arrival."""
        decoding = [run for run in self.running if run.begun]
        # While nobody waits for the next token of an answer, longer steps cost less.
        budget = self.budget if decoding else 2 * self.budget
        chosen, left = [(run, 1) for run in decoding], max(budget - len(decoding), 1)
        for run in self.running:
            if not run.begun and left:
                chosen.append((run, min(run.pending, left)))
                left -= chosen[-1][1]
        return chosen

    def _compute(self, batch: Batch) -> torch.Tensor:
        """Compute and commit the batch; logits of each request whose last token was in it, in order."""
        spans = [self._span(run, count) for run, count in batch]
        rows = sum(count for _, count in batch)
        logits = self.pace.run(rows, lambda: self.model.forward(spans, self.kv))
        for run, count in batch:
            run.done += count
            if not run.begun:
                self.computed += count
                run.lease.commit(run.done)
        return logits

    def _span(self, run: Run, count: int) -> Span:
        end = run.done + count
        self.model.backend.copy_pages(self.kv, run.lease.reserve(end))
        last = end == len(run.tokens) and run.job.max_tokens > 0
        return Span(run.tokens[run.done : end], run.done, run.lease.pages, int(last))

    def _begin(self, run: Run) -> None:
        run.begun = True
        self._tell(run, lambda one: one.job.listener.started())
        if run.job.max_tokens == 0 and run in self.running:
            self._end(run, "length")

    def _answer(self, ready: Sequence[Run], logits: torch.Tensor) -> None:
        """Draw a token for each request of `ready` that has a row of logits, and hand it out."""
        rows = list(enumerate(run for run in ready if run.job.max_tokens > 0))
        for row, run in rows:
            if run in self.running:
                self._tell(run, lambda one, row=row: _confine(one, logits[row]))
        left = [(row, run) for row, run in rows if run in self.running]
        if not left:
            return
        kept = logits if len(left) == len(rows) else logits[[row for row, _ in left]]
        drawn = self.model.backend.sample(kept, [run.job.sampler for _, run in left])
        for (_, run), token in zip(left, drawn, strict=True):
            self._tell(run, lambda one, token=token: self._take(one, token))

    def _take(self, run: Run, token: int) -> None:
        job = run.job
        if token in job.ends:
            return self._end(run, "end")
        run.tokens.append(token)
        run.lease.append((token,))
        if job.guide is not None:
            job.guide.take(token)
        if job.listener.token(token):
            return self._end(run, "enough")
        return self._end(run, "length") if run.answered == job.max_tokens else None

    def _end(self, run: Run, reason: End) -> None:
        # What was computed of the answer can be reused too, where the rules allow it.
        run.lease.commit(run.done)
        self._leave(run)
        run.job.listener.ended(reason)

    def _leave(self, run: Run) -> None:
        self.running.remove(run)
        run.lease.close()

    def _tell(self, run: Run, act: Act) -> None:
        """Do something for one request; if that raises, only this request fails."""
        try:
            act(run)
        except Exception as error:
            self._fail(run, error)

    def _fail(self, run: Run, error: Exception) -> None:
        if run in self.running:
            self._leave(run)
        run.job.listener.failed(error)


def _confine(run: Run, logits: torch.Tensor) -> None:
    """Leave the tokens that may come next, logits [vocab] in place. Raises BadLogits or BadGrammar."""
    if not bool(logits.amax().isfinite()):
        raise BadLogits(f"the model computed no numbers at position {run.done - 1}; its arithmetic overflowed")
    if run.job.guide is not None:
        run.job.guide.confine(logits)
