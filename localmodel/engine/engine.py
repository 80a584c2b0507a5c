"""A model, its prefix cache and its scheduler as one, on a thread of its own: what a server talks to.

    engine = open_engine(default_model())
    job = engine.job(namespace, tokens, reuse=0, max_tokens=50, params=SamplingParams(), listener=…)
    engine.submit(job)          # from any thread; the listener is called from the engine's
    engine.cancel(job)          # pages are free after the step that is being computed
    engine.close()

Only the engine's thread touches torch, the pages and their account. Callers hand it jobs and hear of them through
their listeners, which must not block.
"""

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from localmodel.engine.cache.core import KVCache
from localmodel.engine.cache.disk import DiskTier
from localmodel.engine.cache.identity import PAGE_TOKENS, Root
from localmodel.engine.cache.pages import Counts
from localmodel.engine.cache.store import Offload
from localmodel.engine.cache.tiers import HostTier
from localmodel.engine.errors import EngineStopped, QueueFull
from localmodel.engine.fast import FastBackend
from localmodel.engine.gguf import open_gguf
from localmodel.engine.guide import Guide, Guides
from localmodel.engine.model import PagedModel
from localmodel.engine.sampling import Sampler, SamplingParams
from localmodel.engine.scheduler import Job, Listener, Scheduler
from localmodel.engine.selftest import Exactness, prove
from localmodel.engine.template import ChatTemplate, for_model, source_in_folder
from localmodel.engine.tokenizer import TextTokenizer, from_folder, from_gguf
from localmodel.engine.weights import load, load_gguf

LOG = logging.getLogger("cachewright.engine")
POOL_SHARE, HOST_SHARE = 8, 8
"""The pool and the tier beside it take at most 1/8 each of the memory that is free at the start."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much an engine holds and does at once: pages in the pool, bytes of pages beside it, tokens a step, requests
    running and waiting. `paranoid` recounts all pages after every operation (tests)."""

    pages: int
    host_bytes: int = 0
    budget: int = 512
    batch: int = 8
    queue: int = 64
    paranoid: bool = False


@dataclass(frozen=True, slots=True)
class Parts:
    """What an engine is made of."""

    name: str
    model: PagedModel
    tokenizer: TextTokenizer
    template: ChatTemplate
    exactness: Exactness


@dataclass(slots=True, eq=False)
class Engine:
    """See the module. `counts` (pages by state) and `computed` (tokens of prompts) are those after the latest step.

    Pages go to `disk`, where there is one, as they are computed: one a step, the rest whenever there is nothing else to
    do, all that are left in `close`. `unsaved` is the number of pages that a killed process would lose.
    """

    parts: Parts
    sizes: Sizes
    disk: DiskTier | None = None
    guides: Guides = field(init=False)
    scheduler: Scheduler = field(init=False)
    tier: HostTier = field(init=False)
    counts: Counts = field(init=False)
    computed: int = 0
    unsaved: int = 0
    _inbox: "deque[Callable[[], None]]" = field(default_factory=deque)
    _wake: threading.Condition = field(default_factory=threading.Condition)
    _stopping: bool = False
    _refused: int = 0
    _broken: Exception | None = None
    _thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        parts, sizes = self.parts, self.sizes
        self.guides = Guides(parts.tokenizer, parts.model.config.vocab)
        self.tier = HostTier(sizes.host_bytes, self.disk)
        kv = parts.model.new_kv(sizes.pages)
        lasting = self.disk is not None
        offload = Offload(self.tier, kv.read, kv.write, lasting) if sizes.host_bytes or lasting else None
        cache = KVCache(sizes.pages, offload=offload, paranoid=sizes.paranoid)
        self.scheduler = Scheduler(parts.model, kv, cache, sizes.budget, sizes.batch)
        self.counts = cache.counts
        self._thread = threading.Thread(target=self._work, name="cachewright-engine", daemon=True)
        self._thread.start()

    @property
    def window(self) -> int:
        """Tokens that prompt and answer may have together."""
        return self.parts.model.config.context

    def root(self, namespace: str) -> Root:
        """The identity of pages that callers of `namespace` share."""
        parts, model = self.parts, self.parts.model
        return Root(
            weights=model.identity,
            tokenizer=parts.tokenizer.identity,
            template=parts.template.identity,
            dtype=model.dtype_name,
            layout=model.layout,
            numerics=f"{model.numerics} {'exact' if parts.exactness.exact else 'not exact'}",
            namespace=namespace,
        )

    def job(
        self,
        namespace: str,
        tokens: Sequence[int],
        *,
        reuse: int,
        max_tokens: int,
        params: SamplingParams,
        listener: Listener,
        guide: Guide | None = None,
    ) -> Job:
        """A request for `submit`: at most `reuse` of its tokens are taken from the cache."""
        ends, root = self.parts.tokenizer.specials.ends, self.root(namespace)
        return Job(root, tokens, reuse, max_tokens, ends, Sampler(params), listener, guide)

    def submit(self, job: Job) -> None:
        """Queue a job. Raises QueueFull, or EngineStopped after a bug has stopped the engine's thread."""
        if self._broken is not None:
            raise EngineStopped(f"the engine has stopped: {self._broken}")
        # Counted without a lock: a few requests more or less are no matter, an endless queue is.
        waiting = len(self.scheduler.waiting) + len(self._inbox)
        if waiting >= self.sizes.queue:
            raise QueueFull(f"{waiting} requests wait for the model already, the limit is {self.sizes.queue}")
        self._post(lambda: self._submit(job))

    def cancel(self, job: Job) -> None:
        """Give a job up, whether it is queued, running or over."""
        self._post(lambda: self.scheduler.cancel(job))

    def close(self) -> None:
        """Stop after the step that is being computed, with all pages on disk where there is one.

        Jobs that are not over are told nothing more.
        """
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join()

    def _submit(self, job: Job) -> None:
        try:
            self.scheduler.submit(job)
        except Exception as error:
            job.listener.failed(error)

    def _post(self, act: Callable[[], None]) -> None:
        with self._wake:
            self._inbox.append(act)
            self._wake.notify()

    def _work(self) -> None:
        try:
            self._turns()
            if self.disk is not None:
                self.scheduler.cache.flush()
        except Exception as error:
            # What one request breaks ends in its listener; this is the account of pages or the scheduler itself.
            LOG.exception("the engine has stopped")
            self._broken = error
            self.scheduler.abandon(error)

    def _turns(self) -> None:
        while True:
            with self._wake:
                while not (self._inbox or self._stopping or self.unsaved) and self.scheduler.idle:
                    self._wake.wait()
                if self._stopping:
                    return
                acts = list(self._inbox)
                self._inbox.clear()
            for act in acts:
                act()
            self.scheduler.step()
            self.unsaved = self.scheduler.cache.save(1)
            self._tell_refusals()
            # One reference, replaced as a whole: who reads it elsewhere sees figures that add up.
            self.counts, self.computed = self.scheduler.counts, self.scheduler.computed

    def _tell_refusals(self) -> None:
        """A damaged page or a full disk costs time, not answers; but somebody should know."""
        refused = self.scheduler.cache.refused
        if self.disk is not None and refused.total() > self._refused:
            self._refused = refused.total()
            LOG.warning("pages that could not be stored or restored, and are computed instead: %s", dict(refused))


def open_parts(path: Path, *, fast: bool = False) -> Parts:
    """Load a GGUF file or a Hugging Face folder and prove its arithmetic, on CUDA where there is one.

    `fast`: weights of 8 bits and KV of 4 on the CPU, not exact. Raises MissingModel, BadWeights, UnsupportedModel or
    BadTemplate.
    """
    import torch

    device = "cuda" if torch.cuda.is_available() and not fast else "cpu"
    place = str(path)
    if path.is_dir():
        weights, tokenizer, source = load(path, device=device), from_folder(path), source_in_folder(path)
    else:
        file = open_gguf(path)
        weights, tokenizer = load_gguf(file, device=device), from_gguf(file.metadata, place=place)
        source = file.metadata.get("tokenizer.chat_template")
    model = PagedModel(weights, FastBackend() if fast else None)
    exactness = Exactness(False, "fast mode, weights of 8 bits, KV of 4") if fast else prove(model)
    return Parts(path.stem, model, tokenizer, for_model(source, tokenizer, place=place), exactness)


def sizes_for(model: PagedModel) -> Sizes:
    """Sizes that suit the memory that is free.

    At most as many pages as the batch needs in its worst case, twice over, so that there is room for a cache; at least
    one window.
    """
    memory = _free_memory()
    page_bytes = model.new_kv(1).page_bytes
    window = -(-model.config.context // PAGE_TOKENS) + 1
    batch = Sizes(0).batch
    pages = max(window, min(2 * batch * window, memory // POOL_SHARE // page_bytes))
    return Sizes(pages=pages, host_bytes=memory // HOST_SHARE)


def _free_memory() -> int:
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 4 * 2**30


def open_engine(path: Path, sizes: Sizes | None = None, disk: DiskTier | None = None, *, fast: bool = False) -> Engine:
    """The engine of a model on disk, its pages kept in `disk` over restarts; `fast` and errors as `open_parts`."""
    parts = open_parts(path, fast=fast)
    return Engine(parts, sizes or sizes_for(parts.model), disk)
