"""The rules there are, what each may hold, and which of them a ruleset of each matcher must give."""

from collections.abc import Mapping
from typing import get_args

from localmodel.rules.checks import (
    Check,
    count,
    day,
    each,
    exactly,
    factor,
    flag,
    model,
    one_of,
    result_kind,
    some,
    text,
)
from localmodel.rules.types import Status
from traces.schema import Level, Ttl

PLATFORMS = ("claude_api", "claude_platform_aws", "azure_foundry", "bedrock", "google_cloud")
STATUSES: tuple[str, ...] = get_args(Status)
FIELDS = ("value", "status", "checked", "source", "models", "platforms", "since", "until", "note", "conflict")
REQUIRED = FIELDS[:4]
HEADER = ("schema", "provider", "matcher", "inherits", "sources")

PARAMETERS = (
    "model", "web_search", "web_fetch", "citations", "speed", "tool_choice", "disable_parallel_tool_use", "images",
    "thinking", "effort", "output_format", "context_management", "betas",
)  # fmt: skip
"""Parameters of the Messages API that may enter the key."""
OTHER_PARAMETERS = (
    "parallel_tool_calls", "verbosity", "service_tier", "prompt_cache_key", "prompt_cache_retention", "user_id",
)  # fmt: skip
"""Further ones, of the OpenAI dialects."""

_LEVELS = one_of(*(level.name.lower() for level in Level))
# "routing": not part of the key, but another value may be served by a machine that does not hold the entry.
_EFFECTS = one_of(*(level.name.lower() for level in Level), "routing")
_TTLS = one_of(*get_args(Ttl))

EXPLICIT: Mapping[str, Check] = {
    "prefix_order": exactly(*(level.name.lower() for level in Level)),
    "max_breakpoints": count,
    "automatic_breakpoint": flag,
    "entries_after_request": one_of("each_breakpoint"),
    "cannot_mark": each(one_of("thinking", "redacted_thinking", "empty_text", "deferred_tool"), "block kinds"),
    "implicit_breakpoints": each(result_kind, "block kinds"),
    "implicit_ttl": _TTLS,
    "lookback_positions": count,
    "lookback_collapse": each(one_of("tool_use", "tool_result"), "block kinds"),
    "ttl_seconds_5m": count,
    "ttl_seconds_1h": count,
    "default_ttl": _TTLS,
    "ttl_clock": one_of("request_start"),
    "ttl_order": one_of("longer_first"),
    "refresh_on_read": flag,
    "refresh_breakpoints": flag,
    "readable_after": one_of("first_response_begins", "response_ends"),
    "readable_fallback_seconds": count,
    "isolation_scope": one_of("workspace", "organization", "project", "account", "process"),
    "min_tokens": count,
    **{f"invalidates_{name}": _LEVELS for name in PARAMETERS},
    "strips_thinking": flag,
    "write_multiplier_5m": factor,
    "write_multiplier_1h": factor,
    "read_multiplier": factor,
}
"""Rules of explicit breakpoints; a ruleset with that matcher gives every one."""

AUTOMATIC: Mapping[str, Check] = {
    "boundaries": one_of("every_block", "message_ends", "units", "handles"),
    "boundary_interval_tokens": count,
    "read_granularity_tokens": count,
    "rounding_tokens": count,
    "guaranteed": flag,
    "writes_reported": flag,
    "min_tokens": count,
    "lifetime_ends": one_of("expiry", "eviction"),
    "ttl_seconds_short": count,
    "ttl_likely_seconds_short": count,
    "ttl_max_seconds_short": count,
    "ttl_seconds_long": count,
    "ttl_likely_seconds_long": count,
    "ttl_max_seconds_long": count,
    "default_lifetime": one_of("short", "long"),
    "refresh_on_read": flag,
    "readable_after": one_of("first_response_begins", "response_ends"),
    "readable_fallback_seconds": count,
    "isolation_scope": EXPLICIT["isolation_scope"],
    "invalidates_model": _EFFECTS,
    "write_multiplier_short": factor,
    "write_multiplier_long": factor,
    "read_multiplier": factor,
}
"""Rules of caches that place the boundaries themselves; a ruleset with one of those matchers gives every one."""

OPTIONAL: Mapping[str, Check] = {
    "unmarked": one_of("nothing", "every_block"),
    "last_token_computed": flag,
    "max_breakpoints": count,
    "lookup_explicit_first": count,
    "lookup_explicit_latest": count,
    "lookup_message_ends": count,
    "handle_ttl_seconds": count,
    "storage_usd_per_mtok_hour": factor,
    "routing_rpm_per_prefix": count,
    **{f"invalidates_{name}": _EFFECTS for name in (*PARAMETERS, *OTHER_PARAMETERS)},
}
"""What a ruleset may leave out: absent parameters invalidate nothing, other absent rules say nothing."""

MATCHERS: Mapping[str, Mapping[str, Check]] = {
    "explicit_breakpoints": EXPLICIT,
    "automatic_boundaries": AUTOMATIC,
    "persisted_units": AUTOMATIC,
    "handles": AUTOMATIC,
}
RULES: Mapping[str, Check] = {**OPTIONAL, **AUTOMATIC, **EXPLICIT}
"""Every rule there is, by id."""

FIELD_CHECKS: Mapping[str, Check] = {
    "status": one_of(*STATUSES),
    "checked": day,
    "source": text,
    "models": some(model, "models"),
    "platforms": some(one_of(*PLATFORMS), "platforms"),
    "since": day,
    "until": day,
    "note": text,
    "conflict": text,
}


def allowed(matcher: str) -> Mapping[str, Check]:
    """The rules that a ruleset with this matcher may give."""
    if matcher == "explicit_breakpoints":
        unmarked = ("rounding_tokens", "boundary_interval_tokens", "read_granularity_tokens", "guaranteed")
        return {**OPTIONAL, **{name: AUTOMATIC[name] for name in unmarked}, **EXPLICIT}
    return {**OPTIONAL, **AUTOMATIC}
