"""How the next token is drawn from logits, on the host, so that a text does not depend on the devices.

The order is Hugging Face's: bias and penalties, which change logits; then temperature, top-k, top-p, min-p, each of
which sees what the one before it left; then the draw. Log-probabilities that are reported are the model's own, of its
logits before any of that.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tinygrad.apps import AppError
from tinygrad.helpers import Remade

Real = TypeVar("Real", np.float32, np.float64)
MOST_LOGPROBS = 20
LIKELY = 1 / 256  # of the likeliest token's probability
COLDEST = float(np.finfo(np.float32).tiny)  # that float32 divides by, else 0 / 0 is among the logits
RUN = 64  # tokens whose probabilities are added up together
SORTED = 64  # tokens, before it is tried with more


class SamplingError(Remade, AppError):
  """A setting out of its range, or logits from which nothing can be drawn; `setting` is its name."""

  def __init__(self, setting: str, problem: str, fix: str):
    super().__init__(f"{setting} {problem}\n  fix: {fix}")
    self.setting = setting


@dataclass(frozen=True, slots=True)
class Sampling:
  """As it stands, tokens are drawn by the model's own probabilities.

  temperature: logits are divided by it; 0 takes the likeliest token. top_k: so many of the likeliest stay (and those
  as likely as the last), 0: all. top_p: the likeliest stay whose probabilities reach it. min_p: those stay that have
  this share of the likeliest's probability. repetition: logits of tokens in the prompt or the text are divided by it
  if positive, else multiplied. presence, frequency: are taken off the logits of tokens in the text, once, and by how
  often they are there. bias: is added to the logits of tokens. seed: the same one draws the same tokens; None: another
  each time. logprobs: how many of the likeliest tokens are reported beside each, None: nothing is.

  Raises: SamplingError
  """

  temperature: float = 1.0
  top_k: int = 0
  top_p: float = 1.0
  min_p: float = 0.0
  repetition: float = 1.0
  presence: float = 0.0
  frequency: float = 0.0
  bias: tuple[tuple[int, float], ...] = ()
  seed: int | None = None
  logprobs: int | None = None

  def __post_init__(self) -> None:
    for field in fields(self):
      if field.name in RANGES:
        low, high = RANGES[field.name]
        value = getattr(self, field.name)
        if value is not None and not low <= value <= high:  # NaN is in no range
          raise SamplingError(field.name, f"is {value}", f"a number from {low:g} to {high:g}")
    for token, change in self.bias:
      if token < 0 or not -100 <= change <= 100:
        raise SamplingError("bias", f"of token {token} is {change}", "a token's number, and a change from -100 to 100")

  @property
  def changes(self) -> bool:
    """Whether logits are others before tokens are drawn."""
    return bool(self.bias or self.repetition != 1 or self.presence or self.frequency)


RANGES: dict[str, tuple[float, float]] = {
  "temperature": (0, 100), "top_k": (0, 1 << 31), "top_p": (0, 1), "min_p": (0, 1), "repetition": (0.01, 100),
  "presence": (-2, 2), "frequency": (-2, 2), "seed": (0, (1 << 64) - 1), "logprobs": (0, MOST_LOGPROBS),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Drawn:
  """A token; where they were asked for, its log-probability and the likeliest tokens with theirs."""

  token: int
  logprob: float | None = None
  likeliest: tuple[tuple[int, float], ...] = ()


class Sampler:
  """Draws the tokens of one text after `prompt`, each from logits [vocab]."""

  def __init__(self, sampling: Sampling, prompt: Iterable[int] = ()):
    self.sampling, self.rng = sampling, np.random.default_rng(sampling.seed)
    self.seen, self.counts = set(prompt), Counter[int]()

  def __call__(self, logits: NDArray[np.float32], allowed: NDArray[np.bool_] | None = None) -> Drawn:
    """`allowed` [vocab]: which tokens may be drawn. Raises SamplingError for NaN, or where no token may."""
    (drawn,) = draw([self], logits[np.newaxis], [allowed])
    if isinstance(drawn, SamplingError):
      raise drawn
    return drawn


def draw(
  samplers: Sequence[Sampler], logits: NDArray[np.float32], allowed: Sequence[NDArray[np.bool_] | None]
) -> list[Drawn | SamplingError]:
  """The next token of each text, of logits [texts, vocab], or why there is none. What all texts need is computed for
  all of them at once."""
  changed = any(may is not None for may in allowed) or any(s.sampling.changes for s in samplers)
  x = logits.copy() if changed else logits
  for row, sampler, may in zip(x, samplers, allowed) if changed else ():
    penalised(row, sampler.sampling, sampler.seen, sampler.counts)
    if may is not None:
      row[~may] = -math.inf
  most = x.max(-1, keepdims=True)
  found = np.isfinite(most)
  x = x - np.where(found, most, 0)
  temperatures = np.array([[max(sampler.sampling.temperature or 1.0, COLDEST)] for sampler in samplers], np.float32)
  p = np.zeros((len(x), -(-x.shape[1] // RUN), RUN), np.float32)
  with np.errstate(over="ignore"):  # towards -inf
    colder = x / temperatures
  np.exp(colder, out=p.reshape(len(x), -1)[:, : x.shape[1]])
  totals = p.sum((1, 2), np.float64)
  out: list[Drawn | SamplingError] = []
  for i, sampler in enumerate(samplers):
    s = sampler.sampling
    if not found[i, 0]:
      problem = "hold NaN, or no token may be drawn"
      out.append(SamplingError("logits", problem, "a model in F32; a wider grammar"))
      continue
    if s.temperature == 0:
      token = int(x[i].argmax())
    elif s.top_k or s.top_p < 1 or s.min_p:
      some, shares = candidates(x[i].astype(np.float64), s)
      token = int(some[reached_at(reached := shares.cumsum(), sampler.rng.random() * reached[-1])])
    else:
      token = drawn_at(p[i], sampler.rng.random() * totals[i])
    sampler.seen.add(token)
    sampler.counts[token] += 1
    out.append(reported(logits[i], token, s.logprobs))
  return out


def drawn_at(p: NDArray[np.float32], amount: float) -> int:
  """Where an amount falls among tokens with parts p [runs, RUN], of which the largest is 1. The likely ones come first:
  what rounding does to a sum is the less the less is left. The others follow as they are, run by run, since a sum up to
  each takes more time than all else."""
  flat = p.ravel()
  likely = np.flatnonzero(flat >= LIKELY)
  likely = likely[np.argsort(-flat[likely], kind="stable")]
  ends = flat[likely].cumsum(dtype=np.float64)
  if amount < ends[-1]:
    return int(likely[reached_at(ends, amount)])
  others = flat.copy()
  others[likely] = 0
  if not others.any():  # the last bit of a sum
    return int(likely[-1])
  p, rest = others.reshape(p.shape), amount - ends[-1]
  ends = p.sum(-1, np.float64).cumsum()
  run = reached_at(ends, rest)
  rest -= ends[run - 1] if run else 0
  return run * RUN + reached_at(p[run].cumsum(dtype=np.float64), max(rest, 0.0))


def reached_at(ends: NDArray[np.float64], amount: float) -> int:
  """Where an amount falls, by the sums up to each; never to what has no part of them."""
  return int(min(np.searchsorted(ends, amount, "right"), np.searchsorted(ends, ends[-1])))


def penalised(x: NDArray[Real], s: Sampling, seen: set[int], counts: Counter[int]) -> NDArray[Real]:
  """`x` after bias and penalties, in its place."""
  for token, change in s.bias:
    if token < len(x):
      x[token] += change
  if s.repetition != 1 and seen:
    at = np.fromiter(seen, np.int64, len(seen))
    x[at] = np.where(x[at] > 0, x[at] / s.repetition, x[at] * s.repetition)
  if counts and (s.presence or s.frequency):
    at, many = np.fromiter(counts, np.int64), np.fromiter(counts.values(), np.float64)
    x[at] -= s.presence + s.frequency * many
  return x


def candidates(x: NDArray[np.float64], s: Sampling) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
  """The tokens that may be drawn, and their probabilities, which sum to the share that stayed."""
  with np.errstate(over="ignore"):
    x = x / s.temperature
  least = -math.inf
  if 0 < s.top_k < len(x):
    least = np.partition(x, -s.top_k)[-s.top_k]
  tokens = np.flatnonzero((x >= least) & (x > -math.inf))
  p = np.exp(x[tokens] - x.max())
  p /= p.sum()
  if s.top_p < 1:
    stay = likeliest(p, s.top_p)
    tokens, p = tokens[stay], p[stay]
  if s.min_p > 0:
    enough = p >= s.min_p * p.max()
    tokens, p = tokens[enough], p[enough]
  return tokens, p


def likeliest(p: NDArray[np.float64], share: float) -> NDArray[np.int64]:
  """The places of the likeliest, these in order, the first of equal ones first: up to the one with which their sum
  reaches `share`. As many are sorted as it takes."""
  count = SORTED
  while count < len(p):
    some = np.flatnonzero(p >= np.partition(p, -count)[-count])
    order = some[np.argsort(-p[some], kind="stable")]
    ends = p[order].cumsum()
    if ends[-1] > share:
      return order[: int(np.searchsorted(ends, share)) + 1]
    count *= 16
  order = np.argsort(-p, kind="stable")
  return order[: int(np.searchsorted(p[order].cumsum(), share)) + 1]


def reported(logits: NDArray[np.float32], token: int, most: int | None) -> Drawn:
  if most is None:
    return Drawn(token)
  x = logits.astype(np.float64)
  x -= x.max()
  x -= math.log(np.exp(x).sum())
  top = np.argpartition(-x, min(most, len(x) - 1))[:most]
  top = top[np.lexsort((top, -x[top]))]
  return Drawn(token, float(x[token]), tuple((int(i), float(x[i])) for i in top))
