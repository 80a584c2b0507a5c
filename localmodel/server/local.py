"""The engine as the server's backend: prompts by the model's template, answers from its weights."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from localmodel.engine.cache.disk import DiskTier
from localmodel.engine.engine import Engine, Sizes, open_engine
from localmodel.engine.errors import BadGrammar, EngineError, QueueFull
from localmodel.engine.fetch import default_model
from localmodel.engine.guide import Guide, json_grammar, tools_grammar
from localmodel.engine.sampling import SamplingParams
from localmodel.engine.scheduler import End
from localmodel.server.answer import CLOSE, OPEN, Answering
from localmodel.server.errors import BadRequest, BadSettings, Overloaded
from localmodel.server.model import Claimed, Event, Finished, Generation, Started
from localmodel.server.segments import segment_of
from traces.wire.anthropic import Part

LOG = logging.getLogger("cachewright.serve")
DEFAULT = "default"
MAX_TEMPERATURE = 2.0


class LocalBackend:
    """One engine. `about` says in one line what it runs."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._markup = engine.parts.tokenizer.encode_markup
        exact = engine.parts.exactness
        self.about = f"{engine.parts.name}, {'exact' if exact.exact else f'not exact: {exact.reason}'}"

    @property
    def name(self) -> str:
        """The name of the model's file or folder."""
        return self._engine.parts.name

    @property
    def identity(self) -> Mapping[str, str]:
        """All that the numbers in a page depend on besides its tokens and its namespace."""
        fields = asdict(self._engine.root(""))
        del fields["namespace"]
        return {"model": self.name, **fields}

    @property
    def context_window(self) -> int:
        """The window that the model was trained for."""
        return self._engine.window

    def block(self, part: Part) -> list[int]:
        """By the model's template; see `segments`."""
        return segment_of(part, self._engine.parts.template).tokens(self._engine.parts.tokenizer)

    def opening(self, *, bare: bool) -> list[int]:
        """The template's own beginning, and its default system prompt where the request has none."""
        return self._markup(self._engine.parts.template.preamble(bare=bare))

    def asking(self) -> list[int]:
        """The head of the assistant's message."""
        return self._markup(self._engine.parts.template.generation)

    async def check(self, request: Generation) -> None:
        """Compile the grammar of a forced tool or format, and look at the sampling."""
        _params(request)
        await self._guide(request)

    def pages(self) -> Mapping[str, int]:
        """Pages of the pool by state, and those of the tiers beside it."""
        counts = self._engine.counts
        pool = {"free": counts.free, "cached": counts.cached, "in_use": counts.in_use}
        disk = {} if self._engine.disk is None else {"disk": len(self._engine.disk)}
        return {**pool, "host": len(self._engine.tier), **disk}

    def close(self) -> None:
        """Stop the engine's thread."""
        self._engine.close()

    async def generate(
        self, request: Generation, prompt: Sequence[int], reuse_tokens: int
    ) -> AsyncGenerator[Event, None]:
        """Answer in the engine's next batches."""
        heard = Mailbox(request, self._engine, asyncio.get_running_loop())
        job = self._engine.job(
            request.space,
            list(prompt),
            reuse=reuse_tokens,
            max_tokens=request.max_tokens,
            params=_params(request),
            listener=heard,
            guide=await self._guide(request),
        )
        try:
            self._engine.submit(job)
        except QueueFull as error:
            raise Overloaded(f"{error}; try again later") from None
        try:
            while not isinstance(event := await heard.next(), Finished):
                yield event
            yield event
        finally:
            self._engine.cancel(job)

    async def _guide(self, request: Generation) -> Guide | None:
        grammar = _grammar(request)
        if grammar is None:
            return None
        try:
            # In another thread: it may have to be compiled, or to wait until somebody else's is.
            return await asyncio.to_thread(self._engine.guides.guide, grammar)
        except BadGrammar as error:
            raise BadRequest(f"schema: cannot be followed: {error}") from None


class Mailbox:
    """What the engine's thread has to say of one request, for the event loop to read."""

    def __init__(self, request: Generation, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: asyncio.Queue[Event | Exception] = asyncio.Queue()
        self._answering = Answering(request, engine.parts.tokenizer.detokeniser(), self._send)

    async def next(self) -> Event:
        """The next event. Raises what the engine failed with."""
        found = await self._queue.get()
        if isinstance(found, Exception):
            raise found
        return found

    def claimed(self, reused: int) -> None:
        """See `scheduler.Listener`."""
        self._send(Claimed(reused))

    def started(self) -> None:
        """See `scheduler.Listener`."""
        self._send(Started())

    def token(self, token: int) -> bool:
        """See `scheduler.Listener`."""
        return self._answering.token(token)

    def ended(self, reason: End) -> None:
        """See `scheduler.Listener`."""
        self._answering.end(reason)

    def failed(self, error: Exception) -> None:
        """See `scheduler.Listener`."""
        self._send(error)

    def _send(self, event: Event | Exception) -> None:
        try:
            self._loop.call_soon_threadsafe(self._queue.put_nowait, event)
        except RuntimeError:  # the loop is closed: nobody listens any more
            return


def _grammar(request: Generation) -> str | None:
    """The grammar that the whole answer must follow, in the form of calls that the model was trained on."""
    choice = request.choice
    forced = [choice[1]] if isinstance(choice, tuple) else list(request.tools) if choice == "any" else []
    if forced:
        schemas = {name: request.tools[name].get("input_schema") for name in forced}
        return tools_grammar(schemas, before=OPEN + '\n{"name": ', between=', "arguments": ', after="}\n" + CLOSE)
    return None if request.format is None else json_grammar(request.format)


def _params(request: Generation) -> SamplingParams:
    """Greedy unless a temperature is asked for: the same request then gets the same answer. Raises `BadRequest`."""
    asked = request.sampling
    return SamplingParams(
        temperature=_number(asked.get("temperature"), "temperature", 0.0, MAX_TEMPERATURE, 0.0),
        top_p=_number(asked.get("top_p"), "top_p", 0.0, 1.0, 1.0),
        top_k=int(_number(asked.get("top_k"), "top_k", 0, 2**31, 0)),
        seed=None if asked.get("seed") is None else int(_number(asked["seed"], "seed", -(2**63), 2**63, 0)),
    )


def _number(value: Any, name: str, low: float, high: float, default: float) -> float:
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise BadRequest(f"{name}: want a number from {low:g} to {high:g}", name)
    return value


def open_backend(
    model: str, sizes: Sizes | None = None, *, fast: bool = False, pages: Path | None = None, disk_bytes: int = 0
) -> LocalBackend:
    """The backend for `--model default` or a path; at most `disk_bytes` in `pages`, a folder. Raises `BadSettings`."""
    try:
        path = default_model() if model == DEFAULT else Path(model).expanduser()
        disk = None if pages is None else _disk(pages, disk_bytes)
        return LocalBackend(open_engine(path, sizes, disk, fast=fast))
    except EngineError as error:
        raise BadSettings(f"--model {model}: {error}") from None


def _disk(folder: Path, size: int) -> DiskTier:
    """The tier in a folder; what it had to delete at once is told. Raises `BadSettings`."""
    try:
        disk = DiskTier(folder, size)
    except OSError as error:
        raise BadSettings(f"--kv: {folder} cannot be used: {error.strerror}; give a folder of your own") from None
    if disk.refused_at_start:
        count, first = len(disk.refused_at_start), disk.refused_at_start[0]
        LOG.warning(
            "--kv: %d files in %s were no sound pages and are deleted; the first: %s", count, folder, first.detail
        )
    return disk
