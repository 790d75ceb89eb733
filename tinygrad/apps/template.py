"""Render a chat template: a program that a model's file brings, from anywhere. In a process of its own it has little
time, little memory, and jinja2's sandbox, which lets it change and reach nothing.

Run as a script, it reads {"template", "variables"} as JSON from standard input and writes {"text"} or {"error"}; it
imports nothing of this package. `rendered` runs it.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from typing import Any

CPU_SECONDS, WALL_SECONDS = 5, 60
MEMORY = 1 << 29  # bytes of address space
LONGEST = 1 << 22  # characters of a conversation


def rendered(template: str, variables: dict[str, Any]) -> tuple[str | None, str]:
  """(the text, "") or (None, what is wrong)."""
  command = [sys.executable, "-P", __file__]
  task = json.dumps({"template": template, "variables": variables})
  try:
    done = subprocess.run(command, input=task, capture_output=True, text=True, timeout=WALL_SECONDS, encoding="utf-8")
  except subprocess.TimeoutExpired:
    return None, f"it takes more than {WALL_SECONDS} s"
  try:
    found = json.loads(done.stdout)
  except ValueError:
    return None, f"it takes more than {CPU_SECONDS} s or {MEMORY >> 20} MB"
  return found.get("text"), found.get("error", "")


def render_task() -> None:
  task = json.load(sys.stdin)
  from jinja2 import TemplateError
  from jinja2.ext import loopcontrols
  from jinja2.sandbox import ImmutableSandboxedEnvironment

  def raise_exception(message: str) -> None:
    raise TemplateError(message)

  def tojson(x: Any, indent: int | None = None) -> str:
    return json.dumps(x, ensure_ascii=False, indent=indent)

  env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
  env.filters["tojson"] = tojson
  env.globals |= {"raise_exception": raise_exception, "strftime_now": time.strftime}
  resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
  resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
  resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
  try:
    text = env.from_string(task["template"]).render(**task["variables"])
    said = {"text": text} if len(text) <= LONGEST else {"error": f"it makes more than {LONGEST} characters"}
  except MemoryError:
    said = {"error": f"it takes more than {MEMORY >> 20} MB"}
  except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError, RecursionError) as e:
    said = {"error": str(e) or type(e).__name__}
  print(json.dumps(said))


if __name__ == "__main__":
  render_task()
