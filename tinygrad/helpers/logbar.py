"""A progress bar where standard error is no terminal (a log, CI): lines now and then instead of one that is redrawn."""

from typing import Any

from tqdm import tqdm

SHARE, SHARE_SECONDS, SECONDS = 0.1, 1.0, 30.0


class LogBar(tqdm):  # type: ignore[misc]
  """A line for every tenth of the work, no two within a second; one after 30 seconds in any case; one at the end,
  unless the bar would have vanished within a second (`leave=False`)."""

  monitor_interval = 0  # no thread: a bar on which nothing happens has nothing to say
  said: tuple[float, float] | None = None  # when the last line was written, and how far the work was

  def __init__(self, *args: Any, **kwargs: Any) -> None:
    self.vanishes = kwargs.get("leave") is False
    super().__init__(*args, **{**kwargs, "mininterval": SHARE_SECONDS, "miniters": 1, "leave": False})

  def display(self, msg: str | None = None, pos: int | None = None) -> None:
    """Called where a terminal's bar would be redrawn."""
    now = self._time()
    if self.said is None:
      self.said = now, self.n
    then, before = self.said
    tenth = bool(self.total) and self.n - before >= SHARE * self.total
    if now - then >= SECONDS or (tenth and now - then >= SHARE_SECONDS):
      self._say()

  def clear(self, nolock: bool = False) -> None:
    """Lines stay."""

  def close(self) -> None:
    if not self.disable and self.said is not None and self.n not in (self.initial, self.said[1]):
      if not self.vanishes or self._time() - self.start_t >= SHARE_SECONDS:
        self._say()
    super().close()

  def _say(self) -> None:
    facts = {**self.format_dict, "prefix": self.desc.removesuffix(": ")}
    if self.bar_format:
      look = self.bar_format.replace("{bar} ", "")
    else:
      counted = "{percentage:3.0f}% {n_fmt}/{total_fmt} [{elapsed}<{remaining}" if self.total else "{n_fmt} [{elapsed}"
      look = f"{'{desc}: ' if facts['prefix'] else ''}{counted}, {{rate_fmt}}{{postfix}}]"
    print(self.format_meter(**{**facts, "bar_format": look}).strip(), file=self.fp, flush=True)
    self.said = self._time(), self.n
