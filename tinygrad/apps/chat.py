"""A conversation in a terminal: what is typed, commands that begin with /, answers as they come."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TextIO

from tinygrad.apps import AppError
from tinygrad.apps.generation import Engine, Finish, Request
from tinygrad.apps.reasoning import Marks, reasoning
from tinygrad.apps.sampling import Sampling
from tinygrad.helpers import atomic_write, interruptible

HELP = """\
/system TEXT      what the model is told before the conversation; without TEXT nothing
/clear            begin anew
/save FILE        keep the conversation, as JSON
/load FILE        go on with one that was kept
/set NAME VALUE   {names}; without VALUE: what it is
/help             this
/quit             or Ctrl-D
Enter sends, Alt-Enter begins a new line. Ctrl-C stops an answer."""
STATE = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
HISTORY = Path(STATE) / "tinygrad" / "chat_history"


@dataclass(slots=True)
class Conversation:
  """What was said, and how the next answer is made."""

  engine: Engine
  sampling: Sampling
  max_tokens: int | None = None
  stop: tuple[str, ...] = ()
  system: str = ""
  messages: list[dict[str, str]] = field(default_factory=list)

  def answer(self, text: str) -> Generator[tuple[str, bool], None, None]:
    """The answer's parts as they come: (text, whether it is a thought). It is kept as far as it came.

    Raises: AppError
    """
    self.messages.append({"role": "user", "content": text})
    told = [{"role": "system", "content": self.system}] if self.system else []
    said: list[str] = []
    try:
      prompt, ids = self.engine.tokenizer.chat([*told, *self.messages])
      thinker, marks = reasoning(self.engine.tokenizer, prompt), Marks.of(self.engine.tokenizer)
      seed = self.sampling.seed  # another one for each answer
      sampling = replace(self.sampling, seed=None if seed is None else (seed + len(self.messages) - 1) % (1 << 64))
      request = Request(ids, self.max_tokens, sampling, self.stop, shown=marks.shown, ends=marks.ends)
      with contextlib.closing(self.engine.stream(request)) as events:
        for event in events:
          if event.finish == Finish.ERROR:
            raise AppError(event.error)
          parts = thinker.push(event.text) + (thinker.rest() if event.finish else [])
          said += [part for part, thought in parts if not thought]
          yield from parts
    except AppError:
      self.messages.pop()
      raise
    finally:
      if self.messages and self.messages[-1]["role"] == "user":
        self.messages.append({"role": "assistant", "content": "".join(said)})

  # ---------------------------------------------------------------- commands

  def command(self, line: str) -> str | None:
    """What a command says; None ends the conversation. Raises AppError."""
    name, _, rest = line.strip().partition(" ")
    known: dict[str, Callable[[str], str]] = {
      "/system": self.set_system, "/clear": self.clear, "/save": self.save, "/load": self.load, "/set": self.set,
      "/help": self.help,
    }  # fmt: skip
    if name in ("/quit", "/exit"):
      return None
    if name not in known:
      raise AppError(f"there is no command {name}\n  fix: /help lists them")
    return known[name](rest.strip())

  def set_system(self, text: str) -> str:
    self.system = text
    return "system prompt set" if text else "no system prompt"

  def clear(self, _: str) -> str:
    self.messages.clear()
    return "a new conversation"

  def save(self, name: str) -> str:
    kept = {"system": self.system, "messages": self.messages}
    path = self.file(name)
    with atomic_write(path) as f:
      f.write((json.dumps(kept, ensure_ascii=False, indent=2) + "\n").encode("utf-8", "replace"))
    return f"{len(self.messages)} messages saved to {path}"

  def load(self, name: str) -> str:
    path = self.file(name)
    try:
      kept = json.loads(path.read_text(encoding="utf-8"))
      messages = [{"role": m["role"], "content": m["content"]} for m in kept["messages"]]
      if not all(isinstance(text, str) for m in [*messages, {"": kept["system"]}] for text in m.values()):
        raise ValueError("something else than text")
    except (ValueError, LookupError, TypeError, RecursionError) as e:
      raise AppError(f"{path} holds no conversation: {e!r}\n  fix: a file that /save has written") from e
    self.system, self.messages = kept["system"], messages
    return f"{len(messages)} messages loaded from {path}"

  def file(self, name: str) -> Path:
    try:
      (path,) = shlex.split(name)
    except ValueError as e:
      raise AppError("a file has to be named\n  fix: /save FILE or /load FILE") from e
    if (path := os.path.expanduser(path)).startswith("~"):
      raise AppError(f"{path}: there is no such user\n  fix: a user's name after ~, or ./{path}")
    return Path(path)

  @property
  def settings(self) -> dict[str, Any]:
    sampling = {f.name: getattr(self.sampling, f.name) for f in fields(self.sampling)}
    return {k: v for k, v in sampling.items() if k not in ("bias", "logprobs")} | {"max_tokens": self.max_tokens}

  def set(self, text: str) -> str:
    name, _, value = text.partition(" ")
    if name not in self.settings:
      raise AppError(f"there is no setting {name!r}\n  fix: one of {', '.join(self.settings)}")
    if value:
      whole = name in ("top_k", "seed", "max_tokens")
      try:
        number = None if value == "none" and name in ("seed", "max_tokens") else int(value) if whole else float(value)
      except ValueError as e:
        raise AppError(f"{name}: {value!r} is no {'whole ' if whole else ''}number\n  fix: /set {name} 1") from e
      if name != "max_tokens":
        changes: dict[str, Any] = {name: number}
        self.sampling = replace(self.sampling, **changes)
      elif number is not None and number < 1:
        raise AppError(f"max_tokens is {value}\n  fix: 1 or more, or none")
      else:
        self.max_tokens = None if number is None else int(number)
    return f"{name} is {self.settings[name]}"

  def help(self, _: str) -> str:
    return HELP.format(names=", ".join(self.settings))


# ---------------------------------------------------------------- the terminal


def typed_lines(keys: Any = None, screen: Any = None) -> Iterator[str]:
  """What somebody types, until the end of input, with history and lines that can be edited; Ctrl-C drops a line.

  `keys`, `screen`: prompt_toolkit's input and output, where they are not the terminal's.
  """
  try:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import FileHistory, InMemoryHistory
    from prompt_toolkit.key_binding import KeyBindings
  except ImportError:
    yield from plain_lines()
    return
  history: Any = InMemoryHistory()
  with contextlib.suppress(OSError):  # where nothing can be written
    HISTORY.parent.mkdir(parents=True, exist_ok=True)
    HISTORY.open("ab").close()
    history = FileHistory(str(HISTORY))
  bindings = KeyBindings()
  bindings.add("enter")(lambda event: event.current_buffer.validate_and_handle())
  bindings.add("escape", "enter")(lambda event: event.current_buffer.insert_text("\n"))
  session: Any = PromptSession(history=history, key_bindings=bindings, multiline=True, input=keys, output=screen)
  while True:
    try:
      yield session.prompt("> ", prompt_continuation="  ")
    except KeyboardInterrupt:
      continue
    except EOFError:
      return


def plain_lines() -> Iterator[str]:
  """By `input`, where prompt_toolkit is not installed."""
  while True:
    try:
      yield input("> ")
    except KeyboardInterrupt:
      print()
    except EOFError:
      return


@dataclass(frozen=True, slots=True)
class Screen:
  """Where answers go, with colours or without, and notes beside them."""

  out: TextIO
  notes: TextIO
  colours: bool

  @staticmethod
  def here() -> Screen:
    return Screen(sys.stdout, sys.stderr, sys.stdout.isatty() and not os.environ.get("NO_COLOR"))

  def show(self, parts: Generator[tuple[str, bool], None, None]) -> bool:
    """Prints parts as they come, thoughts dimmed; Ctrl-C ends it after one. Whether it came."""
    dimmed = False
    with contextlib.closing(parts), interruptible() as interrupted:
      for text, thought in parts:
        if thought != dimmed:
          text = f"{self.dim(thought)}{'' if thought else chr(10) * 2}{text}"
        dimmed = thought
        print(text, end="", flush=True, file=self.out)
        if interrupted():
          break
      print(self.dim(False) if dimmed else "", flush=True, file=self.out)
      return interrupted()

  def dim(self, on: bool) -> str:
    return ("\x1b[2m" if on else "\x1b[0m") if self.colours else ""

  def note(self, text: str) -> None:
    print(f"{self.dim(True)}{text}{self.dim(False)}", file=self.notes, flush=True)


def converse(conversation: Conversation, lines: Iterator[str], screen: Screen, notes: bool) -> bool:
  """Answers each line, or does what it commands. `notes`: somebody is there to read them, and goes on after an answer
  was stopped; else that ends it. Whether it did."""
  for line in lines:
    counts = conversation.engine.counts
    before, full, start = counts.decoded, counts.full, time.perf_counter()
    try:
      if notes and line.lstrip().startswith("/"):
        said = conversation.command(line)
        if said is None:
          return False
        screen.note(said)
      elif line.strip() or not notes:
        if screen.show(conversation.answer(line)) and not notes:
          return True
        tokens, seconds = counts.decoded - before, time.perf_counter() - start
        if notes:
          ended = "; the context is full: /clear begins anew" if counts.full > full else ""
          screen.note(f"{tokens} tokens, {tokens / seconds:.1f} a second{ended}")
    except (AppError, OSError) as e:
      if not notes:
        raise
      screen.note(f"error: {e}")
  return False
