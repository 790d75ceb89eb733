"""Random programs of transforms, the same for every library: functions of a vector and a matrix that give a vector, and
transforms that make such functions of such functions, nested.

    python test/transforms/nested_programs.py   # with JAX installed: writes its answers to test/data/jax_programs.npz
"""

import pathlib
import random

import numpy as np

ANSWERS = pathlib.Path(__file__).parents[1] / "data/jax_programs.npz"
PROGRAMS = 300
N = 4
STEPS = np.cos(np.arange(12)).reshape(3, 4)
UNARY = ["sin", "tanh", "exp", "square", "softmax", "cumsum", "reverse", "sort", "shifted", "positive", "root"]
BINARY = ["add", "mul", "maximum", "chosen", "divided"]
TRANSFORMS = [
  "grad", "grad_w", "jvp", "vjp", "vmap", "vmap_w", "vmap_1", "scan", "scan_back", "checkpoint", "jacfwd", "jacrev",
  "hvp",
]  # fmt: skip


def made(seed):
  """A program: (the operations of the body, the transforms around it, from the inside out)."""
  rng = random.Random(seed)
  body = []
  for _ in range(rng.randrange(2, 6)):
    body.append((rng.choice(UNARY),) if rng.random() < 0.6 else (rng.choice(BINARY), rng.randrange(8)))
    if rng.random() < 0.4:
      body.append(("matmul",))
  around = [rng.choice(TRANSFORMS) for _ in range(rng.choice([1, 1, 2, 2, 2, 3]))]
  heavy = [i for i, t in enumerate(around) if t in ("jacfwd", "jacrev", "hvp")]
  for i in heavy[1:]:
    around[i] = "vmap"
  return body, around


def inputs(seed):
  rng = np.random.default_rng(seed)
  return rng.normal(size=N), rng.normal(size=(N, N)) * 0.5


def function(program, lib):
  """The program as a function of (x, w), in a library."""
  body, around = program

  def f(x, w):
    values = [x]
    for name, *operand in body:
      y = values[-1]
      if name == "matmul":
        y = y @ w
      elif operand:
        y = getattr(lib, name)(y, values[operand[0] % len(values)])
      else:
        y = getattr(lib, name)(y)
      values.append(y)
    return values[-1]

  for t in around:
    f = transformed(t, f, lib)
  return f


def transformed(name, f, lib):
  match name:
    case "grad":
      return lambda x, w: lib.grad(lambda y: (f(y, w) ** 2).sum())(x)
    case "grad_w":
      return lambda x, w: lib.grad(lambda v: (f(x, v) * lib.cos(x)).sum())(w).sum(0)
    case "jvp":
      return lambda x, w: lib.jvp(lambda y: f(y, w), (x,), (lib.cos(x),))[1]
    case "vjp":
      return lambda x, w: lib.vjp(lambda y: f(y, w), x)[1](lib.sin(x))[0]
    case "vmap":
      return lambda x, w: lib.vmap(f, (0, None))(lib.stack([x, x * 2, -x]), w).sum(0)
    case "vmap_w":
      return lambda x, w: lib.vmap(f, (None, 0))(x, lib.stack([w, w.T])).sum(0)
    case "vmap_1":
      return lambda x, w: lib.vmap(f, (1, None), 1)(lib.stack([x, x * 0.5]).T, w)[:, 1]
    case "scan" | "scan_back":
      return lambda x, w: scanned(lambda y: f(y, w), x, lib, name == "scan_back")
    case "checkpoint":
      return lib.checkpoint(f)
    case "jacfwd":
      return lambda x, w: lib.jacfwd(lambda y: f(y, w))(x).sum(1)
    case "jacrev":
      return lambda x, w: lib.jacrev(lambda y: f(y, w))(x).sum(0)
    case "hvp":
      return lambda x, w: lib.jvp(lib.grad(lambda y: lib.sin(f(y, w)).sum()), (x,), (lib.cos(x),))[1]
  raise AssertionError(name)


def scanned(f, x, lib, back):
  last, ys = lib.scan(lambda c, k: (lib.tanh(f(c)) * 0.5 + k, c * k), x, lib.array(STEPS), back)
  return last + ys.sum(0)


class Common:
  """What libraries agree on once they have these."""

  def __init__(self, **names):
    vars(self).update(names)

  def square(self, x):
    return x * x * 0.3

  def softmax(self, x):
    e = self.exp(x - x.max())
    return e / e.sum()

  def shifted(self, x):
    return self.pad(x[1:])

  def positive(self, x):
    return self.where(x > 0, x, x * 0.1)

  def root(self, x):
    return (x * x + 1) ** 0.5

  def add(self, x, y):
    return x + y

  def mul(self, x, y):
    return x * y

  def chosen(self, x, y):
    return self.where(x > y, x, self.sin(y))

  def divided(self, x, y):
    return x / (1 + y * y)


def jax_library():
  import jax
  import jax.numpy as jnp

  jax.config.update("jax_enable_x64", True)
  names = {
    "array": jnp.asarray, "sin": jnp.sin, "cos": jnp.cos, "tanh": jnp.tanh, "exp": lambda x: jnp.exp(x * 0.3),
    "cumsum": jnp.cumsum, "reverse": lambda x: x[::-1], "sort": jnp.sort, "pad": lambda x: jnp.pad(x, (0, 1)),
    "where": jnp.where, "maximum": jnp.maximum, "stack": jnp.stack, "grad": jax.grad, "jvp": jax.jvp, "vjp": jax.vjp,
    "vmap": lambda f, i, o=0: jax.vmap(f, i, o), "scan": lambda f, c, xs, back: jax.lax.scan(f, c, xs, reverse=back),
    "checkpoint": jax.checkpoint, "jacfwd": jax.jacfwd, "jacrev": jax.jacrev,
  }  # fmt: skip
  return Common(**names)


if __name__ == "__main__":
  lib = jax_library()
  answers = []
  for seed in range(PROGRAMS):
    answers.append(np.asarray(function(made(seed), lib)(*map(lib.array, inputs(seed)))))
    print(f"\r{seed + 1}/{PROGRAMS}", end="", flush=True)
  np.savez_compressed(ANSWERS, answers=np.stack(answers))
  print(f" written to {ANSWERS.name}")
