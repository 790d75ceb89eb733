"""Calls of tools in a model's text: how families write them, a grammar of one, and what a text holds of them."""

from __future__ import annotations

import json
import re
import uuid
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
  answer."""

  opens: str
  closes: str
  arguments: str


TAGGED = CallSyntax("<tool_call>", "</tool_call>", "arguments")  # Hermes, Qwen, SmolLM3, Granite and others
WHOLE = CallSyntax("", "", "parameters")  # Llama 3


def call_syntax(template: str | None) -> CallSyntax:
  """What a chat template asks its model for."""
  return WHOLE if template and TAGGED.opens not in template and '"parameters"' in template else TAGGED


def tools_in_words(tools: tuple[Tool, ...], syntax: CallSyntax) -> str:
  """For a model whose template knows nothing of tools."""
  told = "\n".join(json.dumps(tool.told) for tool in tools)
  form = f'{syntax.opens}{{"name": <name>, "{syntax.arguments}": <object>}}{syntax.closes}'
  return f"You may call these functions:\n{told}\nTo call one, answer with {form}"


def call_grammar(tools: tuple[Tool, ...], syntax: CallSyntax) -> str:
  """A Lark grammar of one call."""
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
    pattern = f"{re.escape(syntax.opens)}(.*?)(?:{re.escape(syntax.closes)}|$)"
    parts = re.findall(pattern, text, re.S)
  else:
    parts = [text]
  found: list[ToolCall] = []
  for part in parts:
    try:
      value = json.loads(part)
    except (ValueError, RecursionError):
      return []
    for call in value if isinstance(value, list) else [value]:
      arguments = call.get("arguments", call.get("parameters")) if isinstance(call, dict) else None
      if not isinstance(arguments, dict) or call.get("name") not in {tool.name for tool in tools}:
        return []
      found.append(ToolCall(call["name"], json.dumps(arguments, ensure_ascii=False), f"call_{uuid.uuid4().hex[:24]}"))
  return found
