"""Mixed precision: half weights in the forward pass, float32 masters, a scaled loss.

(tinygrad compiles bfloat16 with clang, whose older versions lack it on x86, so it is not in this comparison.)
"""

import numpy as np
from common import digits, initialise, report

from tinygrad import Context, Tensor, dtypes, nn

SCALE = 128.0


class Model:
  def __init__(self):
    self.l1, self.l2 = nn.Linear(64, 32), nn.Linear(32, 10)

  def __call__(self, x, dtype):
    h = x.cast(dtype).linear(self.l1.weight.cast(dtype).T, self.l1.bias.cast(dtype)).relu()
    return h.linear(self.l2.weight.cast(dtype).T, self.l2.bias.cast(dtype)).float()


def main():
  x, y, x_test, _ = digits()
  x = x.reshape(-1, 64)
  half = "half keeps 11 bits; where a sum is rounded in between differs"
  losses = {}
  for dtype in (dtypes.half, dtypes.float):
    model = initialise(Model(), seed=12)
    opt = nn.optim.SGD(nn.state.get_parameters(model), lr=0.5)
    found = []
    with Context(TRAINING=1):
      for i in range(10):
        opt.zero_grad()
        loss = model(Tensor(x[i * 64 : i * 64 + 64]), dtype).sparse_categorical_crossentropy(
          Tensor(y[i * 64 : i * 64 + 64])
        )
        (loss * SCALE).backward()
        for p in opt.params:
          p.grad = p.grad.cast(dtypes.float32) / SCALE
        loss.realize(*opt.schedule_step())
        found.append(loss.item())
    losses[dtype] = found
  assert np.allclose(losses[dtypes.half], losses[dtypes.float], rtol=0.02)
  logits = model(Tensor(x_test[:8].reshape(-1, 64)), dtypes.half)
  report(
    half=(losses[dtypes.half], 5e-3, half),
    full=losses[dtypes.float],
    logits=(logits, 5e-3, half),
    promoted=((Tensor([1.5], dtype=dtypes.half) * Tensor([2.0])).item(), 0, "exact"),
  )


if __name__ == "__main__":
  main()
