"""Chat template as block segments: the rule that makes breakpoints land on token boundaries.

**The rule.** A prompt is a concatenation: opening, one segment for each content block, the call for an answer. Each
segment is tokenised by itself, and within it the template's text and the block's text by themselves. So the tokens of
a block depend on nothing but its role and content, every block ends on a token boundary, equal blocks have equal
tokens wherever they stand, and the counts of the blocks add up to the prompt. A message of several blocks is rendered
as several messages of its role. For messages of one block the text is exactly what the model was trained on.

The wrappers of each role are learnt from the model's own Jinja template by rendering markers (in a sandbox) and taking
the result apart; a template that cannot be put together again from its parts is refused. Tools are written as text, in
the form that Qwen and SmolLM2 were trained on, because most templates have no place for them block by block.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import xxhash

from localmodel.engine.errors import BadTemplate
from localmodel.engine.tokenizer import TextTokenizer, optional_json

Role: TypeAlias = Literal["system", "user", "assistant"]
_MARKS = tuple(f"\ue000{number}\ue001" for number in range(4))
_TOOL = (
    "You may call this tool by answering with\n"
    '<tool_call>\n{{"name": {name}, "arguments": {{...}}}}\n</tool_call>\n<tools>\n{definition}\n</tools>'
)


@dataclass(frozen=True, slots=True)
class Segment:
    """One block as the model reads it: `before` and `after` are markup, `content` is the caller's text."""

    before: str
    content: str
    after: str

    def tokens(self, tokenizer: TextTokenizer) -> list[int]:
        """Tokens of this block, the same wherever it stands."""
        return [
            *tokenizer.encode_markup(self.before),
            *tokenizer.encode(self.content),
            *tokenizer.encode_markup(self.after),
        ]


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """Wrappers by role (markup before and after), what stands in front of all, and what asks for an answer.

    `opening` begins every prompt; `default_system` follows it where a prompt has neither tools nor system text.
    """

    wrappers: Mapping[str, tuple[str, str]]
    generation: str
    opening: str = ""
    default_system: str = ""

    @property
    def identity(self) -> str:
        """Digest of the template, for the identity of pages."""
        parts = [sorted(self.wrappers.items()), self.generation, self.opening, self.default_system, _TOOL]
        return xxhash.xxh3_128_hexdigest(json.dumps(parts).encode())

    def preamble(self, *, bare: bool) -> str:
        """Markup in front of the first block; `bare`: the prompt has neither tools nor system text."""
        return self.opening + (self.default_system if bare else "")

    def segment(self, role: Role, text: str) -> Segment:
        """A block of text of one role."""
        before, after = self.wrappers[role]
        return Segment(before, text, after)

    def tool(self, definition: Mapping[str, Any]) -> Segment:
        """A tool's definition; keys keep their order, for it is part of the prompt."""
        text = _TOOL.format(name=_dump(definition.get("name")), definition=_dump(definition))
        return self.segment("system", text)

    def tool_call(self, name: str, arguments: Any) -> Segment:
        """A call the assistant made."""
        return self.segment("assistant", tool_call_text(name, arguments))

    def tool_result(self, text: str) -> Segment:
        """What a tool answered."""
        return self.segment("user", f"<tool_response>\n{text}\n</tool_response>")


def tool_call_text(name: str, arguments: Any) -> str:
    """The text by which the model calls a tool."""
    return f'<tool_call>\n{{"name": {_dump(name)}, "arguments": {_dump(arguments)}}}\n</tool_call>'


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


CHATML = ChatTemplate(
    wrappers={role: (f"<|im_start|>{role}\n", "<|im_end|>\n") for role in ("system", "user", "assistant")},
    generation="<|im_start|>assistant\n",
)
"""For models whose file has no template but whose vocabulary has <|im_start|>."""


def for_model(source: str | None, tokenizer: TextTokenizer, *, place: str) -> ChatTemplate:
    """The template of a model: its own (Jinja source), else ChatML if it knows the tokens. Raises BadTemplate."""
    if source:
        return learn(source, place=place, begin=tokenizer.specials.begin, end=tokenizer.specials.end)
    if "<|im_start|>" in tokenizer.specials.names:
        return CHATML
    raise BadTemplate(f"{place}: holds no chat template, and its tokens are not ChatML; use an instruct model")


def source_in_folder(folder: Path) -> str | None:
    """The Jinja source of a Hugging Face folder, None without one."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text("utf-8")
    found = optional_json(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(found, list):  # several by name
        named = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else None


def learn(source: str, *, place: str, begin: str = "", end: str = "") -> ChatTemplate:
    """Take a Jinja template apart into wrappers. `begin` and `end` are what it calls bos_token and eos_token.

    Raises BadTemplate if it cannot be rendered, or its parts do not give its own rendering again.
    """
    render = _renderer(source, place, begin, end)
    system, user, answer, second = _MARKS
    talk = [("system", system), ("user", user), ("assistant", answer), ("user", second)]
    full = render(talk)
    head, to_user, to_answer, to_second, after_user = _cut(full, _MARKS, place)
    _, after_answer = _cut(render(talk[1:3]), (user, answer), place, last=True)
    before_answer = _without(to_answer, after_user, place)
    before_user = _without(to_second, after_answer, place)
    if not to_user.endswith(before_user):
        raise _odd(place, to_user, before_user)
    after_system = to_user[: len(to_user) - len(before_user)]
    opening = begin if begin and head.startswith(begin) else ""
    alone, _ = _cut(render(talk[1:2]), (user,), place)
    default = _without(alone.removesuffix(before_user), opening, place)
    asked = render(talk, ask=True)
    found = ChatTemplate(
        wrappers={
            "system": (head[len(opening) :], after_system),
            "user": (before_user, after_user),
            "assistant": (before_answer, after_answer),
        },
        generation=_without(asked, full, place),
        opening=opening,
        default_system=default,
    )
    _prove(found, full, talk, place)
    return found


def _renderer(source: str, place: str, begin: str, end: str) -> Any:
    try:
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise BadTemplate(f"{place}: its chat template needs jinja2: pip install 'cachewright[local]'") from None
    # These options, the two extensions and the function are what transformers gives a template.
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )

    def refuse(message: str) -> None:
        raise TemplateError(message)

    environment.globals["raise_exception"] = refuse

    def render(talk: list[tuple[str, str]], *, ask: bool = False) -> str:
        messages = [{"role": role, "content": content} for role, content in talk]
        try:
            template = environment.from_string(source)
            return str(
                template.render(
                    messages=messages, add_generation_prompt=ask, bos_token=begin, eos_token=end, tools=None
                )
            )
        except Exception as error:  # the template is a program of whoever made the model: it may fail in any way
            raise BadTemplate(f"{place}: the chat template fails on a plain talk: {str(error)[:200]}") from None

    return render


def _cut(text: str, marks: tuple[str, ...], place: str, *, last: bool = False) -> list[str]:
    """The pieces between the marks; with `last` only the pieces beside the last one."""
    pieces: list[str] = []
    for mark in marks:
        before, found, text = text.partition(mark)
        if not found:
            raise BadTemplate(f"{place}: the chat template leaves out or changes a message, so it cannot be cut")
        pieces.append(before)
    pieces.append(text)
    return pieces[-2:] if last else pieces


def _without(text: str, start: str, place: str) -> str:
    if not text.startswith(start):
        raise _odd(place, text, start)
    return text[len(start) :]


def _odd(place: str, text: str, part: str) -> BadTemplate:
    return BadTemplate(f"{place}: the chat template joins messages unevenly ({text[:60]!r} without {part[:60]!r})")


def _prove(found: ChatTemplate, full: str, talk: list[tuple[str, str]], place: str) -> None:
    """The wrappers must give the template's own rendering again."""
    parts = [content.join(found.wrappers[role]) for role, content in talk]
    if found.opening + "".join(parts) != full:
        raise BadTemplate(f"{place}: the chat template is not the sum of its messages, it cannot be cut into blocks")
