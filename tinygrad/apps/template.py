"""Render a chat template: a program that a model's file brings, from anywhere. In a process of its own it has little
time, little memory, and jinja2's sandbox, which lets it change and reach nothing.

Run as a script, it is that process: for each line of standard input, {"template", "variables"} as JSON, it writes a
line {"text"} or {"error"}; it imports nothing of this package. `rendered` starts it, and keeps it for the next time.
"""

from __future__ import annotations

import json
import math
import os
import resource
import select
import subprocess
import sys
import threading
import time
from typing import Any

CPU_SECONDS, WALL_SECONDS = 5, 60
MEMORY = 1 << 29  # bytes of address space
LONGEST = 1 << 22  # characters of a conversation


class TemplateProcess:
  """The process, started when it is asked for the first time, and again after it had to end."""

  def __init__(self) -> None:
    self.lock = threading.Lock()
    self.process: subprocess.Popen[bytes] | None = None

  def ask(self, task: dict[str, Any]) -> bytes:
    """The line that it answers, empty where it has ended. Raises TimeoutError."""
    with self.lock:
      if self.process is None or self.process.poll() is not None:
        command = [sys.executable, "-P", __file__]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, **pipes, start_new_session=True)  # Ctrl-C is not for it
      try:
        return self.exchange(self.process, json.dumps(task).encode() + b"\n")
      except BaseException:
        self.process.kill()
        self.process.wait()
        raise

  def exchange(self, process: subprocess.Popen[bytes], line: bytes) -> bytes:
    assert process.stdin is not None and process.stdout is not None
    try:
      process.stdin.write(line)
      process.stdin.flush()
    except BrokenPipeError:
      process.wait()
      return b""
    end, out = time.monotonic() + WALL_SECONDS, bytearray()
    while not out.endswith(b"\n"):
      if not select.select([process.stdout], [], [], max(end - time.monotonic(), 0))[0]:
        raise TimeoutError
      part = os.read(process.stdout.fileno(), 1 << 16)
      if not part:
        process.wait()
        return b""
      out += part
    return bytes(out)


_process = TemplateProcess()


def rendered(template: str, variables: dict[str, Any]) -> tuple[str | None, str]:
  """(the text, "") or (None, what is wrong)."""
  try:
    line = _process.ask({"template": template, "variables": variables})
  except TimeoutError:
    return None, f"it takes more than {WALL_SECONDS} s"
  if not line:
    return None, f"it takes more than {CPU_SECONDS} s or {MEMORY >> 20} MB"
  found = json.loads(line)
  return found.get("text"), found.get("error", "")


def render_tasks() -> None:
  from jinja2 import TemplateError
  from jinja2.ext import Extension, loopcontrols
  from jinja2.sandbox import ImmutableSandboxedEnvironment

  def raise_exception(message: str) -> None:
    raise TemplateError(message)

  def tojson(
    x: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
  ) -> str:
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

  class Generation(Extension):
    """`{% generation %}` tells trainers where an answer is; what it encloses is written as it stands."""

    tags = {"generation"}

    def parse(self, parser: Any) -> Any:
      next(parser.stream)
      return parser.parse_statements(("name:endgeneration",), drop_needle=True)

  def text_of(template: str, variables: dict[str, Any]) -> str:
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation])
    env.filters["tojson"] = tojson
    env.globals |= {"raise_exception": raise_exception, "strftime_now": time.strftime}
    return str(env.from_string(template).render(**variables))

  resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
  resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
  for line in sys.stdin:
    task = json.loads(line)
    used = math.ceil(time.process_time())
    resource.setrlimit(resource.RLIMIT_CPU, (used + CPU_SECONDS, resource.RLIM_INFINITY))
    try:
      text = text_of(**task)
      said = {"text": text} if len(text) <= LONGEST else {"error": f"it makes more than {LONGEST} characters"}
    except MemoryError:
      said = {"error": f"it takes more than {MEMORY >> 20} MB"}
    except Exception as e:  # whatever a template does wrong
      said = {"error": str(e) or type(e).__name__}
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
  render_tasks()
