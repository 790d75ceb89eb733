"""Training a GPT as a function of its parameters against training it in place: milliseconds of a captured step, and of
the processor's time for it, call by call in turn in one process.

    python -m extra.bench.functional [--layers 4] [--width 128] [--rounds 40]

In place: `loss.backward()` and an optimizer that assigns (SGD with momentum). As a function: `TinyJit` of
`value_and_grad`, `step(parameters, momentum, batch)` that returns new ones; donated: to the memory of those that it was
given. All give the same losses.
"""

from __future__ import annotations

import argparse
import statistics
import time

from extra.bench.scan_layers import Block
from tinygrad import Tensor, TinyJit, donate, nn, value_and_grad
from tinygrad.nn.state import get_state_dict, load_state_dict
from tinygrad.transforms.tree import tree_leaves, tree_map

RATE, MOMENTUM = 0.01, 0.9


class GPT:
  """Predicts the next of `vocab` tokens."""

  def __init__(self, layers: int, width: int, vocab: int = 256, length: int = 64) -> None:
    self.tokens, self.places = nn.Embedding(vocab, width), nn.Embedding(length, width)
    self.blocks = [Block(width, 4) for _ in range(layers)]
    self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)

  def __call__(self, tokens: Tensor) -> Tensor:
    x = self.tokens(tokens) + self.places(Tensor.arange(tokens.shape[1]))
    return self.head(self.norm(x.sequential(self.blocks)))


def loss_of(model: GPT, batch: Tensor) -> Tensor:
  return model(batch[:, :-1]).sparse_categorical_crossentropy(batch[:, 1:])


def in_place(model: GPT):
  optimizer = nn.optim.SGD(tree_leaves(model), lr=RATE, momentum=MOMENTUM)

  @TinyJit
  def step(batch: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = loss_of(model, batch).backward()
    optimizer.step()
    return loss.realize()

  return step


def as_function(model: GPT, donated: bool):
  def step(parameters: dict[str, Tensor], momentum: dict[str, Tensor], batch: Tensor):
    def loss(parameters: dict[str, Tensor]) -> Tensor:
      return loss_of(with_parameters(model, parameters), batch)

    value, g = value_and_grad(loss)(parameters)
    momentum = tree_map(lambda m, g: m * MOMENTUM + g, momentum, g)
    return value, tree_map(lambda p, m: p - RATE * m, parameters, momentum), momentum

  step = TinyJit(donate(step, (0, 1)) if donated else step)
  parameters = {k: t.clone().realize() for k, t in get_state_dict(model).items()}
  state = [parameters, tree_map(lambda t: Tensor.zeros(*t.shape).contiguous().realize(), parameters)]

  def call(batch: Tensor) -> Tensor:
    value, state[0], state[1] = step(*state, batch)
    return value

  return call


def with_parameters(model: GPT, parameters: dict[str, Tensor]) -> GPT:
  """A copy of the model that has these."""
  each = iter(parameters.values())
  return tree_map(lambda _: next(each), model)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--layers", type=int, default=4, help="transformer layers (4)")
  parser.add_argument("--width", type=int, default=128, help="of the model (128)")
  parser.add_argument("--rounds", type=int, default=40, help="pairs of calls (40)")
  args = parser.parse_args()
  Tensor.manual_seed(0)
  models = [GPT(args.layers, args.width) for _ in range(3)]
  for model in models[1:]:
    load_state_dict(model, {k: t.clone() for k, t in get_state_dict(models[0]).items()})
  Tensor.realize(*tree_leaves(models))
  batches = [Tensor.randint(8, 65, high=256).realize() for _ in range(args.rounds + 4)]
  ways = {"in place": in_place(models[0]), "function": as_function(models[1], False)}
  ways["donated"] = as_function(models[2], True)
  times: dict[str, list[float]] = {name: [] for name in ways}
  work: dict[str, list[float]] = {name: [] for name in ways}
  losses: dict[str, list[float]] = {name: [] for name in ways}
  with Tensor.train():
    for batch in batches:
      for name, step in ways.items():
        start, worked = time.perf_counter(), time.process_time()
        losses[name].append(float(step(batch).item()))
        times[name].append(time.perf_counter() - start)
        work[name].append(time.process_time() - worked)
  assert all(max(row) - min(row) < 1e-3 for row in zip(*losses.values())), "they train differently"
  for name in ways:
    (wall, apart), (cpu, more) = (
      (statistics.median(t[name][4:]) * 1e3, statistics.median(b / a for a, b in zip(t["in place"][4:], t[name][4:])))
      for t in (times, work)
    )
    print(f"{name:9} {wall:7.2f} ms ({apart:.3f})   processor {cpu:7.2f} ms ({more:.3f})   loss {losses[name][-1]:.4f}")
  print("in parentheses: the median of what a call takes over the call in place beside it")


if __name__ == "__main__":
  main()
