"""Expert parallelism: tokens and experts are both cut over the devices, tokens travel to the experts that they choose.

    python examples/experts.py

Each device sorts its tokens into a box for each expert, an all-to-all brings the boxes to their experts, another one
brings the results back (D. Lepikhin et al.: GShard. 2020). A box holds `capacity` tokens of a device; others are passed
by.
"""

from tinygrad import Mesh, P, Tensor, TinyJit, all_to_all, distributed, nn, shard_map
from tinygrad.sharding import explain


def chosen(x: Tensor, router: Tensor) -> tuple[Tensor, Tensor]:
  """(which expert each token goes to, one-hot; how much its result counts)."""
  share = (x @ router).softmax()
  best = share.max(-1, keepdim=True)
  return (share == best).float(), best


def experts(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
  """(experts, tokens, width) to the same, each expert its own."""
  return (x @ up).gelu() @ down


def mixture(x: Tensor, router: Tensor, up: Tensor, down: Tensor) -> Tensor:
  """Of tokens (tokens, width), with all experts in one place: every token goes through all of them."""
  choice, share = chosen(x, router)
  every = experts(x.expand(up.shape[0], *x.shape), up, down)
  return (every * choice.T.unsqueeze(-1)).sum(0) * share


def parallel_mixture(capacity: int):
  """The same inside `shard_map` over the axis "ep", of one device's tokens and experts."""

  def of_part(x: Tensor, router: Tensor, up: Tensor, down: Tensor) -> Tensor:
    choice, share = chosen(x, router)
    place = (choice.cumsum(0) * choice - 1).unsqueeze(-1)  # of each token in its expert's box
    boxes = (place == Tensor.arange(capacity)).float()  # (tokens, experts, capacity)
    sent = boxes.flatten(1).T @ x
    sent = all_to_all(sent.reshape(-1, capacity, x.shape[1]), "ep", 0, 1, tiled=True)
    made = all_to_all(experts(sent, up, down), "ep", 1, 0, tiled=True)
    return boxes.flatten(1) @ made.flatten(0, 1) * share

  return of_part


def train(steps: int) -> list[float]:
  """Trains router and experts to give back their tokens; the loss of each step."""
  mesh, specs = Mesh(tuple(f"CPU:{i}" for i in range(4)), names=("ep",)), (P("ep"), P(), P("ep"), P("ep"))
  sizes = (64, 16), (16, 8), (8, 16, 32), (8, 32, 16)
  x, *weights = [(Tensor.randn(*s) * 0.2).shard(mesh, spec).realize() for s, spec in zip(sizes, specs)]
  mixed, adam = shard_map(parallel_mixture(capacity=16), mesh, specs, P("ep")), nn.optim.Adam(weights, lr=0.01)

  @TinyJit
  def step() -> Tensor:
    adam.zero_grad()
    loss = (mixed(x, *weights) - x).square().mean()
    loss.backward()
    return loss.realize(*adam.schedule_step())

  with Tensor.train():
    return [step().item() for _ in range(steps)]


def main() -> None:
  distributed.initialize()  # in processes of their own, if such run: python -m tinygrad.launch -n 4
  mesh, specs = Mesh(tuple(f"CPU:{i}" for i in range(4)), names=("ep",)), (P("ep"), P(), P("ep"), P("ep"))
  x, router = Tensor.randn(64, 16), Tensor.randn(16, 8)
  up, down = Tensor.randn(8, 16, 32) * 0.2, Tensor.randn(8, 32, 16) * 0.2
  given = [t.realize() for t in (x, router, up, down)]
  y = shard_map(parallel_mixture(capacity=16), mesh, specs, P("ep"))(*(t.shard(mesh, s) for t, s in zip(given, specs)))
  print(explain(y))
  print(f"greatest difference from experts in one place: {abs(y.numpy() - mixture(*given).numpy()).max():.1e}")
  print("losses", *(f"{loss:.4f}" for loss in train(5)))


if __name__ == "__main__":
  main()
