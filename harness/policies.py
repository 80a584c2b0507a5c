"""What-if policies that only an agent can follow, for the auditor to replay.

The auditor asks for a `Policy` by its shape and the command line registers these, so that neither package imports the
other; requests and trial are therefore `Any` here (`auditor.replay.Sent`, `auditor.whatif.Trial`).
"""

from dataclasses import dataclass, replace
from typing import Any

from traces.canonical import digest
from traces.schema import Block, Mark, Prompt
from traces.tokens import cumulated


@dataclass(frozen=True, slots=True)
class PrefixSummary:
    """Summaries asked for at the end of the cached conversation instead of in a request of their own."""

    name: str = "prefix_summary"
    remedy: bool = False
    quality_risk: str | None = None

    def fixes(self, audited: Any, diagnosis: Any) -> bool:
        """It is the remedy of no diagnosis: a summary of its own is new content, not a miss."""
        return False

    def paths(self, trial: Any, row: Any) -> None:
        """There is one way only."""

    def rewrite(self, sent: list[Any], trial: Any) -> list[Any]:
        """Each summary that shares nothing with its agent's last request is sent behind that request instead.

        A summary that was sent without markers left nothing in the cache and so is not among `sent`; it is added.
        """
        out, last = list(sent), dict[tuple[str, str], Any]()
        place = {one.call: index for index, one in enumerate(out) if one.call is not None}
        for audited in trial.audit.calls:
            call, index = audited.call, place.get(audited.index)
            key = (call.trace, call.agent)
            if call.kind in ("main", "subagent") and index is not None:
                last[key] = out[index]
            elif call.kind == "summary" and key in last and _apart(audited.prompt, last[key].prompt):
                before = last[key]
                answer = trial.audit.calls[before.call].call.usage.output_tokens or 0
                prompt = _behind(before.prompt, audited.prompt, answer)
                new = replace(before, prompt=prompt, at=audited.at, readable_at=audited.readable_at, call=audited.index)
                if index is None:
                    out.append(new)
                else:
                    out[index] = new
        return out


def _apart(own: Prompt | None, before: Prompt) -> bool:
    """Whether a summary's request shares nothing with the conversation."""
    return own is not None and bool(own.ends) and own.chain[0] != before.chain[0]


def _behind(before: Prompt, own: Prompt, answer_tokens: int) -> Prompt:
    """The last request, its answer (marked: the newest end), and the summary's own last block, the instruction."""
    instruction = len(own.blocks) - 1
    answer = _block(own.blocks[instruction], b"answer")
    tokens = [before.tokens_of(index) for index in range(len(before.blocks))]
    end = len(before.blocks)
    heads = [mark for mark in before.marks if mark.index < end]
    return replace(
        before,
        blocks=(*before.blocks, answer, own.blocks[instruction]),
        paths=(*before.paths, f"/messages/{end}", f"/messages/{end + 1}"),
        chain=(*before.chain, answer.wire, digest(answer.wire + own.blocks[instruction].wire)),
        marks=(*heads[-3:], Mark(end, heads[-1].ttl if heads else "5m")),
        ends=cumulated([*tokens, answer_tokens, own.tokens_of(instruction)]),
        errors=(),
        tail=own.tail,
    )


def _block(like: Block, salt: bytes) -> Block:
    name = digest(salt + like.wire)
    return replace(like, wire=name, meaning=name, role="assistant")


POLICIES = (PrefixSummary(),)
