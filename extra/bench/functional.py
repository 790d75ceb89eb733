"""Training a GPT as a function of its parameters against training it in place: milliseconds of a captured step, call by
call in turn in one process.

    python -m extra.bench.functional [--layers 4] [--width 128] [--rounds 40]

In place: `loss.backward()` and an optimizer that assigns (SGD with momentum). As a function: `TinyJit` of
`value_and_grad`, `step(parameters, momentum, batch)` that returns new ones. Both give the same losses.
"""

from __future__ import annotations

import argparse
import statistics
import time

from extra.bench.scan_layers import Block
from tinygrad import Tensor, TinyJit, nn, value_and_grad
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


def as_function(model: GPT):
  @TinyJit
  def step(parameters: dict[str, Tensor], momentum: dict[str, Tensor], batch: Tensor):
    def loss(parameters: dict[str, Tensor]) -> Tensor:
      return loss_of(with_parameters(model, parameters), batch)

    value, g = value_and_grad(loss)(parameters)
    momentum = tree_map(lambda m, g: m * MOMENTUM + g, momentum, g)
    return value, tree_map(lambda p, m: p - RATE * m, parameters, momentum), momentum

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
  models = [GPT(args.layers, args.width) for _ in range(2)]
  load_state_dict(models[1], {k: t.clone() for k, t in get_state_dict(models[0]).items()})
  Tensor.realize(*tree_leaves(models))
  batches = [Tensor.randint(8, 65, high=256).realize() for _ in range(args.rounds + 4)]
  ways = {"in place": in_place(models[0]), "function": as_function(models[1])}
  times: dict[str, list[float]] = {name: [] for name in ways}
  losses: dict[str, list[float]] = {name: [] for name in ways}
  with Tensor.train():
    for batch in batches:
      for name, step in ways.items():
        start = time.perf_counter()
        losses[name].append(float(step(batch).item()))
        times[name].append(time.perf_counter() - start)
  assert all(abs(a - b) < 1e-3 for a, b in zip(*losses.values())), "the two train differently"
  ratio = statistics.median(b / a for a, b in zip(*(t[4:] for t in times.values())))
  for name, found in times.items():
    print(f"{name:9} {statistics.median(found[4:]) * 1e3:7.2f} ms   last loss {losses[name][-1]:.4f}")
  print(f"function / in place: {ratio:.3f} (median of neighbouring calls)")


if __name__ == "__main__":
  main()
