"""A slab of bytes and the page cache over it: the least engine there can be, for tests of tiers."""

from localmodel.engine.cache.core import KVCache
from localmodel.engine.cache.identity import PAGE_TOKENS, Identify, Root, blake2b_256
from localmodel.engine.cache.store import Event, Offload
from localmodel.engine.cache.tiers import PageBytes, Payload

ROOT = Root("weights", "tokenizer", "template", "bf16", "layout", "exact", "tenant")


class Engine:
    """A slab of bytes and the cache over it."""

    def __init__(self, pages: int, tier: PageBytes, identify: Identify = blake2b_256, *, lasting: bool = False) -> None:
        self.slab = [bytes(8)] * pages
        self.events: list[Event] = []
        self.reads = 0
        offload = Offload(tier, self._read, self._write, lasting)
        self.cache = KVCache(pages, offload=offload, identify=identify, on_event=self.events.append, paranoid=True)

    def _read(self, page: int) -> Payload:
        self.reads += 1
        return self.slab[page]

    def _write(self, page: int, payload: Payload) -> None:
        self.slab[page] = bytes(payload)

    def run(self, prompt: list[int], root: Root = ROOT) -> tuple[int, int]:
        """Compute a prompt; (tokens reused, of which restored). The KV of a page is its whole prefix."""
        with self.cache.lease(root, prompt) as lease:
            for i in range(lease.matched // PAGE_TOKENS):
                assert self.slab[lease.pages[i]] == self.kv(root, prompt, i)
            lease.reserve()
            for i in range(lease.matched // PAGE_TOKENS, len(prompt) // PAGE_TOKENS):
                self.slab[lease.pages[i]] = self.kv(root, prompt, i)
            lease.commit(len(prompt))
            return lease.matched, lease.restored

    @staticmethod
    def kv(root: Root, prompt: list[int], i: int) -> bytes:
        return repr((root.namespace, prompt[: (i + 1) * PAGE_TOKENS])).encode()
