"""Pipeline parallelism: each device has one stage of a model, microbatches go from one to the next.

    python examples/pipeline.py

At every tick each stage works on another microbatch and hands its result on (Y. Huang et al.: GPipe. 2019). The
backward pass is the gradient of the loop: it goes through the stages from the last one.
"""

from tinygrad import Mesh, P, Tensor, TinyJit, axis_index, axis_size, distributed, nn, ppermute, psum, scan, shard_map
from tinygrad.sharding import explain


def stage(w: Tensor, x: Tensor) -> Tensor:
  """One stage: (rows, width) to the same."""
  return x + (x @ w).tanh()


def model(ws: Tensor, xs: Tensor) -> Tensor:
  """All stages, one after the other, of all microbatches (microbatches, rows, width)."""
  for i in range(ws.shape[0]):
    xs = stage(ws[i], xs)
  return xs


def pipeline(ws: Tensor, xs: Tensor) -> Tensor:
  """The same inside `shard_map` over the axis "pp": of the weights (1, width, width) of this device's stage."""
  n, i = axis_size("pp"), axis_index("pp")
  onward = [(j, j + 1) for j in range(n - 1)]

  def tick(received, x):
    y = stage(ws[0], i.eq(0).where(x, received))
    return ppermute(y, "pp", onward), y

  empty = Tensor.zeros(n - 1, *xs.shape[1:])  # ticks at which the first stage has nothing more to do
  _, ys = scan(tick, Tensor.zeros(xs.shape[1:]), xs.cat(empty))
  return psum(i.eq(n - 1).where(ys[n - 1 :], 0), "pp")  # the last stage has them


def train(steps: int) -> list[float]:
  """Trains the stages to give back what they are given, turned around; the loss of each step."""
  mesh = Mesh(tuple(f"CPU:{i}" for i in range(4)), names=("pp",))
  ws, xs = (Tensor.randn(4, 16, 16) * 0.2).shard(mesh, P("pp")).realize(), Tensor.randn(8, 2, 16).shard(mesh).realize()
  piped, adam = shard_map(pipeline, mesh, (P("pp"), P()), P()), nn.optim.Adam([ws], lr=0.01)

  @TinyJit
  def step() -> Tensor:
    adam.zero_grad()
    loss = (piped(ws, xs) - xs.flip(-1)).square().mean()
    loss.backward()
    return loss.realize(*adam.schedule_step())

  with Tensor.train():
    return [step().item() for _ in range(steps)]


def main() -> None:
  distributed.initialize()  # in processes of their own, if such run: python -m tinygrad.launch -n 4
  mesh = Mesh(tuple(f"CPU:{i}" for i in range(4)), names=("pp",))
  ws = (Tensor.randn(4, 16, 16) * 0.2).shard(mesh, P("pp")).realize()
  xs = Tensor.randn(8, 2, 16).shard(mesh, P()).realize()
  piped = shard_map(pipeline, mesh, (P("pp"), P()), P())
  y = piped(ws, xs)
  print(explain(y))
  g = y.square().mean().gradient(ws)[0]
  plain = Tensor(ws.numpy())
  want = model(plain, Tensor(xs.numpy())).square().mean().gradient(plain)[0]
  print(f"greatest difference of gradients from the model in one place: {abs(g.numpy() - want.numpy()).max():.1e}")
  print("losses", *(f"{loss:.4f}" for loss in train(5)))


if __name__ == "__main__":
  main()
