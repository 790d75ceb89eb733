"""Calls of tools in a model's text: how families write them, a grammar of one, and what a text holds of them."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tinygrad.apps.grammar import json_rule


@dataclass(frozen=True, slots=True)
class Tool:
  """A function that a model may call; `parameters` is the JSON schema of its arguments."""

  name: str
  description: str
  parameters: dict[str, Any]

  @property
  def told(self) -> dict[str, Any]:
    """As a chat template has it."""
    function = {"name": self.name, "description": self.description, "parameters": self.parameters}
    return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class CallSyntax:
  """A call is an object with "name" and `arguments`, between `opens` and `closes`; without these it is the whole
  answer.

  `before`, `named`, `after`: how a call that has to come is written where that is with control tokens, in Lark, with
  names of tokens in <>; `named`: the arguments alone, after the tool's name. `answer`: what comes before any other.
  """

  opens: str
  closes: str
  arguments: str
  before: str = ""
  named: str = ""
  after: str = ""
  answer: str = ""


TAGGED = CallSyntax("<tool_call>", "</tool_call>", "arguments")  # Hermes, Qwen, SmolLM3, Granite and others
WHOLE = CallSyntax("", "", "parameters")  # Llama 3
LISTED = CallSyntax("[TOOL_CALLS]", "", "arguments", before='<[TOOL_CALLS]> "["', after='"]"')  # Mistral
NAMED = CallSyntax("[TOOL_CALLS]", "", "arguments", before="<[TOOL_CALLS]>", named="<[ARGS]>")  # Mistral, from v11 on
CHANNELS = CallSyntax(  # gpt-oss; `Channels` makes tags of it
  "<tool_call>",
  "</tool_call>",
  "arguments",
  before='<<|channel|>> "commentary to=functions."',
  named='" " <<|constrain|>> "json" <<|message|>>',
  answer='<<|channel|>> "final" <<|message|>>',
)


def call_syntax(template: str | None) -> CallSyntax:
  """What a chat template asks its model for."""
  template = template or ""
  if "<|channel|>" in template:
    return CHANNELS
  if LISTED.opens in template:
    return NAMED if "[ARGS]" in template else LISTED
  return WHOLE if TAGGED.opens not in template and '"parameters"' in template else TAGGED


def in_lark(text: str, number: Callable[[str], int]) -> str:
  """Of names of tokens in <> their numbers, as llguidance has them."""
  return re.sub(r"<(\[\w+\]|<\|\w+\|>)>", lambda m: f"<[{number(m[1])}]>", text)


def tools_in_words(tools: tuple[Tool, ...], syntax: CallSyntax) -> str:
  """For a model whose template knows nothing of tools."""
  told = "\n".join(json.dumps(tool.told) for tool in tools)
  form = f'{syntax.opens}{{"name": <name>, "{syntax.arguments}": <object>}}{syntax.closes}'
  return f"You may call these functions:\n{told}\nTo call one, answer with {form}"


def call_grammar(tools: tuple[Tool, ...], syntax: CallSyntax, number: Callable[[str], int]) -> str:
  """A Lark grammar of one call. `number`: of a token, by its name."""
  if syntax.named:
    calls = [f"{json.dumps(tool.name)} {syntax.named} {json_rule(tool.parameters)}" for tool in tools]
    rules = "\n".join(f"call{i}: {in_lark(call, number)}" for i, call in enumerate(calls))
    return f"start: {in_lark(syntax.before, number)} ({' | '.join(f'call{i}' for i in range(len(calls)))})\n{rules}"
  options = [
    {
      "type": "object",
      "properties": {"name": {"const": tool.name}, syntax.arguments: tool.parameters},
      "required": ["name", syntax.arguments],
      "additionalProperties": False,
    }
    for tool in tools
  ]
  opens, closes = (json.dumps(s) for s in (f"{syntax.opens}\n", f"\n{syntax.closes}"))
  if syntax.before:
    opens, closes = in_lark(syntax.before, number), syntax.after
  start = f"start: {opens} call {closes}" if syntax.opens else "start: call"
  return f"{start}\ncall: {json_rule(options[0] if len(options) == 1 else {'anyOf': options})}"


@dataclass(frozen=True, slots=True)
class ToolCall:
  name: str
  arguments: str  # JSON
  id: str

  @property
  def shown(self) -> dict[str, Any]:
    return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


def calls_in(text: str, tools: tuple[Tool, ...], syntax: CallSyntax) -> list[ToolCall]:
  """The calls of a text that begins with one; none where anything in it is something else."""
  if syntax.opens:
    ends = f"{re.escape(syntax.closes)}|$" if syntax.closes else f"(?={re.escape(syntax.opens)})|$"
    parts = re.findall(f"{re.escape(syntax.opens)}(.*?)(?:{ends})", text, re.S)
  else:
    parts = [text]
  found: list[ToolCall] = []
  for part in parts:
    named = re.fullmatch(r"\s*([\w.-]+)(?:\[CALL_ID\]\w*)?(?:\[ARGS\])?\s*(\{.*\})\s*", part, re.S)
    try:
      value = {"name": named[1], "arguments": json.loads(named[2])} if named else json.loads(part)
      for call in value if isinstance(value, list) else [value]:
        arguments = call.get("arguments", call.get("parameters")) if isinstance(call, dict) else None
        if not isinstance(arguments, dict) or call.get("name") not in [tool.name for tool in tools]:
          return []
        found.append(ToolCall(call["name"], strict_json(arguments), f"call_{uuid.uuid4().hex[:24]}"))
    except (ValueError, RecursionError):
      return []
  return found


def strict_json(value: Any) -> str:
  """As text that every client reads: half of a surrogate pair stays an escape. Raises ValueError for NaN, infinity."""
  text = json.dumps(value, ensure_ascii=False, allow_nan=False)
  return text if text.isascii() or not any("\ud800" <= c <= "\udfff" for c in text) else json.dumps(value)
