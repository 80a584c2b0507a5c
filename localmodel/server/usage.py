"""One count of tokens, said in each dialect's own meaning.

| dialect            | its input figure         | read                      | written                           |
|--------------------|--------------------------|---------------------------|-----------------------------------|
| Anthropic Messages | neither read nor written | `cache_read_input_tokens` | `cache_creation_input_tokens`     |
| Chat Completions   | whole                    | `cached_tokens`           | `cache_write_tokens`              |
| Responses          | whole                    | `cached_tokens`           | `cache_write_tokens`              |
| DeepSeek (Chat)    | whole                    | `prompt_cache_hit_tokens` | none; the rest is a miss          |

Under rules without a class of writes the OpenAI dialects say nothing of writes.

Sources: types of the SDKs anthropic 2.14.0 and openai 3.57.0.
"""

from dataclasses import dataclass

from localmodel.rules.types import Outcome
from traces.schema import JsonObject


@dataclass(frozen=True, slots=True)
class Counts:
    """Tokens of one call. `input_tokens` is the whole; `read_tokens` is billed, `reused_tokens` physical.

    `provider` is whose rules were followed, `writes` whether they have a class of writes.
    """

    input_tokens: int
    read_tokens: int
    write_5m_tokens: int
    write_1h_tokens: int
    reused_tokens: int
    provider: str = "anthropic"
    writes: bool = True

    @property
    def write_tokens(self) -> int:
        """Tokens written, of both lifetimes."""
        return self.write_5m_tokens + self.write_1h_tokens

    @property
    def uncached_tokens(self) -> int:
        """Input that was neither read nor written."""
        return self.input_tokens - self.read_tokens - self.write_tokens


def counts(outcome: Outcome, total: int, reused: int, provider: str) -> Counts:
    """What to report where `reused` tokens were physically reused.

    Never more is reported as read than was reused. What the rules allowed but the backend had to compute (its copy
    was evicted) is written again, in the shorter lifetime, or is plain input where writes are no class.
    """
    read = min(outcome.read_tokens, reused)
    again = outcome.read_tokens - read if outcome.reports_writes else 0
    written = outcome.write_5m_tokens + again
    return Counts(total, read, written, outcome.write_1h_tokens, reused, provider, outcome.reports_writes)


def anthropic(found: Counts, output: int) -> JsonObject:
    """`usage` of a Messages reply."""
    return {
        **anthropic_delta(found, output),
        "cache_creation": {
            "ephemeral_5m_input_tokens": found.write_5m_tokens,
            "ephemeral_1h_input_tokens": found.write_1h_tokens,
        },
        "service_tier": "standard",
    }


def anthropic_delta(found: Counts, output: int) -> JsonObject:
    """`usage` of `message_delta`: all four counters again, since some clients read them only there."""
    return {
        "input_tokens": found.uncached_tokens,
        "cache_creation_input_tokens": found.write_tokens,
        "cache_read_input_tokens": found.read_tokens,
        "output_tokens": output,
    }


def chat(found: Counts, output: int) -> JsonObject:
    """`usage` of a Chat Completions reply."""
    made: JsonObject = {
        "prompt_tokens": found.input_tokens,
        "completion_tokens": output,
        "total_tokens": found.input_tokens + output,
        "prompt_tokens_details": _details(found),
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    if found.provider == "deepseek":
        made["prompt_cache_hit_tokens"] = found.read_tokens
        made["prompt_cache_miss_tokens"] = found.input_tokens - found.read_tokens
    return made


def _details(found: Counts) -> JsonObject:
    written = {"cache_write_tokens": found.write_tokens} if found.writes else {}
    return {"cached_tokens": found.read_tokens, **written}


def responses(found: Counts, output: int) -> JsonObject:
    """`usage` of a Responses reply."""
    return {
        "input_tokens": found.input_tokens,
        "input_tokens_details": _details(found),
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": found.input_tokens + output,
    }
