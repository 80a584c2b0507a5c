"""What agents do to a conversation between two calls: grow it, or change something that may cost the cache."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from talk import MIN_TOKENS, Maker, Piece, Talk

Change: TypeAlias = Callable[[Maker, Talk], Talk]


def add_round(maker: Maker, talk: Talk) -> Talk:
    rng = maker.rng
    image, thinking, words = rng.random() < 0.03, rng.random() < 0.3, rng.random() < 0.8
    parallel = rng.choice((1, 1, 2, 5))
    return talk.with_turns(*maker.tool_round(parallel, thinking=thinking, words=words, image=image))


def add_words(maker: Maker, talk: Talk) -> Talk:
    texts = tuple(maker.text() for _ in range(maker.rng.randint(1, 3)))
    return talk.with_turns(("assistant", (maker.text(),)), ("user", texts))


def add_to_the_limit(maker: Maker, talk: Talk) -> Talk:
    """New blocks that put the old tail 18 to 22 positions back, in plain texts, sequential or parallel rounds."""
    rng = maker.rng
    over = rng.randint(0, 4)
    if rng.random() < 0.4:
        return talk.with_turns(("assistant", (maker.text(),)), ("user", tuple(maker.text() for _ in range(16 + over))))
    parallel = rng.choice((1, 1, 3))
    for _ in range(5):
        talk = talk.with_turns(*maker.tool_round(parallel))
    # 5 rounds are 15 positions where runs count once; 2 with the next round's missing words, the rest below
    talk = talk.with_turns(*maker.tool_round(2, words=False))
    return talk.with_last(*(maker.text() for _ in range(over)))


def add_parallel(maker: Maker, talk: Talk) -> Talk:
    return talk.with_turns(*maker.tool_round(maker.rng.randint(7, 22)))


def add_search(maker: Maker, talk: Talk) -> Talk:
    return talk.with_turns(maker.search_turn(), ("user", (maker.text(),)))


def add_empty_tail(maker: Maker, talk: Talk) -> Talk:
    """An empty text that cannot carry the automatic marker."""
    return talk.with_last(maker.text(), Piece({"type": "text", "text": ""}, 0))


def without_empty_tail(talk: Talk) -> Talk:
    """The talk as a client sends it on that drops the empty text again."""
    role, pieces = talk.turns[-1]
    if pieces[-1].block.get("text") != "":
        return talk
    return replace(talk, turns=(*talk.turns[:-1], (role, pieces[:-1])))


def add_media(maker: Maker, talk: Talk) -> Talk:
    rng = maker.rng
    return talk.with_last(maker.image() if rng.random() < 0.5 else maker.document(cited=rng.random() < 0.5))


def drop_block(maker: Maker, talk: Talk) -> Talk:
    """Remove one image or document, else edit some block."""
    spots = [(t, n) for t, (_, pieces) in enumerate(talk.turns) for n, piece in enumerate(pieces)]
    several = [(t, n) for t, n in spots if len(talk.turns[t][1]) > 1]
    media = [(t, n) for t, n in several if talk.turns[t][1][n].block["type"] in ("image", "document")]
    if media and maker.rng.random() < 0.6:
        return talk.with_piece(*maker.rng.choice(media))
    t, n = maker.rng.choice(spots)
    old = talk.turns[t][1][n]
    edited = {"type": "text", "text": maker.name("edited")} if old.block["type"] == "text" else old.block
    return talk.with_piece(t, n, replace(old, block=edited))


def reorder_keys(maker: Maker, talk: Talk) -> Talk:
    """Send one tool input with its keys in another order, as some languages' maps do."""
    spots = [(t, n) for t, (_, ps) in enumerate(talk.turns) for n, p in enumerate(ps) if p.block["type"] == "tool_use"]
    if not spots:
        return talk
    t, n = maker.rng.choice(spots)
    old = talk.turns[t][1][n]
    swapped = dict(reversed(old.block["input"].items()))
    return talk.with_piece(t, n, replace(old, block={**old.block, "input": swapped}))


def cut_back(maker: Maker, talk: Talk) -> Talk:
    """Drop the last exchange."""
    return replace(talk, turns=talk.turns[:-2]) if len(talk.turns) > 2 else talk


def change_tools(maker: Maker, talk: Talk) -> Talk:
    """Insert, defer, remove or move a tool, or switch a web tool on or off."""
    rng = maker.rng
    tools = list(talk.tools)
    what = rng.choice(("insert", "defer", "remove", "move", "web", "web", "web", "web"))
    if what in ("insert", "defer"):
        extra = {"defer_loading": True} if what == "defer" else {}
        tools.insert(rng.randint(0, len(tools)), maker.tool(**extra))
    elif what == "remove" and tools:
        tools.pop(rng.randrange(len(tools)))
    elif what == "move" and tools:
        tools.append(tools.pop(0))
    elif what == "web":
        kind = rng.choice(("web_search", "web_fetch"))
        kept = [piece for piece in tools if piece.block["name"] != kind]
        if len(kept) == len(tools):
            kept.insert(rng.choice((len(kept), len(kept), rng.randint(0, len(kept)))), maker.web_tool(kind))
        tools = kept
    return replace(talk, tools=tuple(tools))


def change_system(maker: Maker, talk: Talk) -> Talk:
    last = talk.system[-1]
    return replace(talk, system=(*talk.system[:-1], replace(last, block=maker.text().block)))


def change_param(maker: Maker, talk: Talk) -> Talk:
    """Set or remove one of the parameters that enter the key of a level."""
    rng = maker.rng
    choices = (
        ("tool_choice", (None, {"type": "auto"}, {"type": "any"}, {"type": "auto", "disable_parallel_tool_use": True})),
        ("tool_choice", (None, {"type": "auto", "disable_parallel_tool_use": False}, {"type": "tool", "name": "run"})),
        ("thinking", (None, {"type": "enabled", "budget_tokens": 1024}, {"type": "enabled", "budget_tokens": 2048})),
        ("output_config", (None, {"effort": "low"}, {"effort": "medium"})),
        ("output_config", (None, {"format": {"type": "json_schema"}})),
        ("speed", (None, "fast")),
    )
    name, values = rng.choice(choices)
    return talk.with_param(name, rng.choice(values))


def change_scope(maker: Maker, talk: Talk) -> Talk:
    """Another model or key."""
    rng = maker.rng
    if rng.random() < 0.3:
        return replace(talk, model=rng.choice(list(MIN_TOKENS)))
    return replace(talk, key=rng.choice(("key-1", "key-2")))


GROWTH: tuple[Change, ...] = (
    add_round,
    add_round,
    add_words,
    add_to_the_limit,
    add_to_the_limit,
    add_parallel,
    add_search,
)
CHANGES: tuple[Change, ...] = (
    *(add_empty_tail, add_empty_tail, add_media, drop_block, reorder_keys, cut_back, change_tools, change_tools),
    *(change_system, change_param, change_param, change_param, change_scope),
)
