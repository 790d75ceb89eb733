"""A GPT: embeddings, causal attention, layer norm, GELU, tied output weights; AdamW, and greedy text under TinyJit."""

import numpy as np
from common import initialise, report

from tinygrad import Context, Tensor, TinyJit, Variable, nn

TEXT = b"the quick brown fox jumps over the lazy dog. pack my box with five dozen liquor jugs. "
CONTEXT, DIM, HEADS = 32, 32, 4


class Attention:
  def __init__(self):
    self.c_attn, self.c_proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)

  def __call__(self, x):
    q, k, v = self.c_attn(x).chunk(3, dim=-1)
    q, k, v = [t.reshape(*x.shape[:2], HEADS, DIM // HEADS).transpose(1, 2) for t in (q, k, v)]
    y = q.scaled_dot_product_attention(k, v, is_causal=True)
    return self.c_proj(y.transpose(1, 2).reshape(x.shape))


class Block:
  def __init__(self):
    self.ln_1, self.attn, self.ln_2 = nn.LayerNorm(DIM), Attention(), nn.LayerNorm(DIM)
    self.mlp = [nn.Linear(DIM, 4 * DIM), Tensor.gelu, nn.Linear(4 * DIM, DIM)]

  def __call__(self, x):
    x = x + self.attn(self.ln_1(x))
    return x + self.ln_2(x).sequential(self.mlp)


class GPT:
  def __init__(self):
    self.wte, self.wpe = nn.Embedding(128, DIM), nn.Embedding(CONTEXT, DIM)
    self.h, self.ln_f = [Block(), Block()], nn.LayerNorm(DIM)

  def __call__(self, tokens):
    x = self.wte(tokens) + self.wpe(Tensor.arange(tokens.shape[1]))
    return self.ln_f(x.sequential(self.h)) @ self.wte.weight.T


def main():
  data = np.frombuffer(TEXT * 4, np.uint8).astype(np.int32)
  model = initialise(GPT(), seed=3)
  opt = nn.optim.AdamW(nn.state.get_parameters(model), lr=3e-3, weight_decay=0.1)
  rng, losses = np.random.default_rng(4), []

  @TinyJit
  @Context(TRAINING=1)
  def step(x, y):
    opt.zero_grad()
    loss = model(x).sparse_categorical_crossentropy(y).backward()
    loss.realize(*opt.schedule_step())
    return loss

  for _ in range(80):
    starts = rng.integers(0, len(data) - CONTEXT - 1, 8)
    x = np.stack([data[s : s + CONTEXT] for s in starts])
    y = np.stack([data[s + 1 : s + CONTEXT + 1] for s in starts])
    losses.append(step(Tensor(x), Tensor(y)).item())

  @TinyJit
  def next_token(tokens, position):
    return model(tokens)[0].shrink(((position - 1, position), None)).argmax(-1).realize()

  text = list(b"the quick ")
  length = Variable("length", 1, CONTEXT)
  while len(text) < 24:
    padded = np.array([text + [0] * (CONTEXT - len(text))], np.int32)
    text.append(int(next_token(Tensor(padded), length.bind(len(text))).item()))
  assert losses[-1] < losses[0] / 3, losses
  report(losses=losses[:10], last=(losses[-1], 0.02, "80 steps amplify the order of sums"), text=(text, 0, "tokens"))


if __name__ == "__main__":
  main()
