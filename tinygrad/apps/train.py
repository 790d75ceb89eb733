"""Train a language model on a folder of text, on one device or many: a tokenizer, a llama, and a GGUF file of both.

examples:
  %(prog)s --data texts/ --out model.gguf --checkpoint-dir run --plot loss.svg    on one device
  %(prog)s --data texts/ --out model.gguf --checkpoint-dir run --mesh 2x2         batch in 2 parts, weights in 2
  %(prog)s --data texts/ --out model.gguf --checkpoint-dir run --resume --mesh 4  go on, on other devices
  %(prog)s --data texts/ --out tiny.gguf --tiny --tokens 20000                    seconds, to see that it works
  %(prog)s --data stdlib --mesh 2x2 --out model.gguf                              the model in the package
  python -m tinygrad.launch -n 4 -m tinygrad.apps.train --data texts/ --mesh 2x2 --out model.gguf    in 4 processes
  python -m tinygrad.apps.llm --model model.gguf --prompt "def "                  write text with the result

Ctrl-C finishes the step, writes a checkpoint and says how to go on; a second Ctrl-C ends at once, and the last
checkpoint stays whole. docs/llm.md describes it, docs/embedded_model.md is the record of the model in the package.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from tinygrad import DeviceError, ShardError, distributed
from tinygrad.apps import AppError
from tinygrad.apps.train_data import Batches, Corpus, TrainError, document_bytes, encode_documents, train_tokenizer
from tinygrad.apps.train_files import export_model, loss_curve, read_weights, write_text
from tinygrad.apps.train_model import TINY, Recipe, Sizes, Trainer, TrainLayout
from tinygrad.helpers import atomic_write, interruptible, tqdm
from tinygrad.nn.files import CheckpointError

CHECKPOINT = "checkpoint.safetensors"
SIZES = {"dim": "width", "layers": "layers", "heads": "heads", "kv_heads": "heads of keys and values",
         "ffn": "width of the feed-forward layers", "vocab": "tokens of the vocabulary",
         "context": "tokens of a window"}  # fmt: skip


def training_options() -> argparse.ArgumentParser:
  description, _, epilog = (__doc__ or "\n\n").partition("\n\n")
  raw, recipe = argparse.RawDescriptionHelpFormatter, Recipe()
  p = argparse.ArgumentParser("python -m tinygrad.apps.train", None, description, epilog, formatter_class=raw)
  p.add_argument("--data", required=True, metavar="DIR", help="texts; or stdlib, the sources of Python's library")
  p.add_argument("--mesh", default="1", metavar="DPxTP", help="batch cut x weights cut, as 2x2; or 4: weights (1)")
  p.add_argument("--tokens", type=int, default=recipe.tokens, metavar="N", help="to train on (default: %(default)s)")
  p.add_argument("--steps", type=int, metavar="N", help="stop after this many steps of the same schedule")
  p.add_argument("--batch", type=int, default=recipe.batch, metavar="N", help="windows of a step (%(default)s)")
  p.add_argument("--lr", type=float, default=recipe.lr, metavar="X", help="greatest learning rate (%(default)s)")
  p.add_argument("--seed", type=int, default=recipe.seed, metavar="N", help="of weights and order (default: 0)")
  sizes = p.add_argument_group("model")
  sizes.add_argument("--tiny", action="store_true", help="a model of 100 thousand parameters, to try things out")
  for name, what in SIZES.items():
    default = f"{getattr(Sizes(), name)}; tiny {getattr(TINY, name)}"
    sizes.add_argument(f"--{name.replace('_', '-')}", type=int, metavar="N", help=f"{what} (default: {default})")
  files = p.add_argument_group("files")
  files.add_argument("--out", type=Path, metavar="GGUF", help="write the model here (Q8_0), and measure it as written")
  files.add_argument("--checkpoint-dir", type=Path, metavar="DIR", help="keep checkpoints here")
  files.add_argument("--checkpoint-every", type=int, default=250, metavar="N", help="steps between two (default: 250)")
  files.add_argument("--eval-every", type=int, default=250, metavar="N", help="steps between measurements (250)")
  files.add_argument("--resume", action="store_true", help="go on from the checkpoint, on any number of devices")
  files.add_argument("--losses", type=Path, metavar="JSON", help="write the loss of every step, and what it belongs to")
  files.add_argument("--batches", type=Path, metavar="NPZ", help="write the token windows of the steps done")
  files.add_argument("--plot", type=Path, metavar="SVG", help="draw the loss curve")
  return p


def sizes_of(a: argparse.Namespace, layout: TrainLayout) -> Sizes:
  """Raises TrainError where they do not fit together, or not onto the devices."""
  default = TINY if a.tiny else Sizes()
  given: dict[str, Any] = {f.name: getattr(a, f.name, None) for f in fields(Sizes)}
  s = Sizes(**{k: getattr(default, k) if v is None else v for k, v in given.items()})
  dp, tp = layout.shape
  for ok, problem, fix in (
    (min(getattr(s, k) for k in SIZES) > 0, "a size is less than 1", "sizes from 1 on"),
    (s.dim % (2 * s.heads) == 0, f"--dim {s.dim} is no multiple of 2 · {s.heads} heads", f"--dim {2 * s.heads * 16}"),
    (s.heads % s.kv_heads == 0, f"{s.heads} heads cannot share {s.kv_heads} kv heads", f"--kv-heads {s.heads}"),
    (s.kv_heads % tp == 0, f"{s.kv_heads} kv heads cannot be cut in {tp}", f"--kv-heads {tp}, or a smaller --mesh"),
    (a.batch % dp == 0, f"--batch {a.batch} cannot be cut in {dp}", f"--batch {dp}, or a smaller --mesh"),
    (s.vocab >= 258, f"--vocab {s.vocab} has no room for 256 bytes and 2 marks", "--vocab 512"),
  ):
    if not ok:
      raise TrainError(f"{problem}\n  fix: {fix}")
  return s


class Training:
  """One run of the command: what is read and made, trained, and written."""

  def __init__(self, a: argparse.Namespace, say: Callable[[str], None]) -> None:
    self.a, self.say, layout = a, say, TrainLayout.parse(a.mesh)
    self.sizes = sizes_of(a, layout)
    self.recipe = Recipe(tokens=a.tokens, batch=a.batch, lr=a.lr, seed=a.seed)
    self.corpus = corpus = Corpus.of_stdlib() if a.data == "stdlib" else Corpus.of_folder(Path(a.data))
    self.tokenizer = train_tokenizer([text for _, text in corpus.train], self.sizes.vocab)
    self.tokens, self.held_out = (
      encode_documents(self.tokenizer, [t for _, t in docs]) for docs in (corpus.train, corpus.held_out)
    )
    self.train_bytes, self.held_bytes = document_bytes(corpus.train), document_bytes(corpus.held_out)
    say(f"corpus: Python {platform.python_version()}, sha256 {corpus.hash}")
    size = f"{self.train_bytes} bytes, {len(self.tokens)} tokens of {self.sizes.vocab}"
    say(f"  train: {len(corpus.train)} documents, {size}")
    say(f"  held out: {len(corpus.held_out)} documents, {self.held_bytes} bytes, {len(self.held_out)} tokens")
    context, steps = self.sizes.context, self.recipe.steps(self.sizes.context)
    self.batches = Batches(self.tokens, context, a.batch, steps, a.seed)
    self.trainer = Trainer(self.sizes, self.recipe, layout)
    self.parameters = sum(math.prod(w.shape) for w in self.trainer.model.weights.values())
    say(f"model: {self.parameters} parameters on {layout.where}")
    self.checkpoint: Path | None = a.checkpoint_dir / CHECKPOINT if a.checkpoint_dir else None

  @property
  def done(self) -> int:
    """Steps, those before a resumed run among them."""
    return len(self.trainer.losses)

  def resume(self) -> None:
    if self.checkpoint is None:
      return
    self.checkpoint.parent.mkdir(parents=True, exist_ok=True)
    if self.a.resume and self.checkpoint.exists():
      self.trainer.load(self.checkpoint, self.corpus.hash)
      self.say(f"going on after {self.done} steps of {self.checkpoint}")

  def save(self) -> None:
    if self.checkpoint is not None:
      self.trainer.save(self.checkpoint, self.corpus.hash)

  def measure(self) -> None:
    bits = self.trainer.bits_per_byte(self.held_out, self.held_bytes)
    self.trainer.held_out.append((self.done, bits))
    loss = np.mean(self.trainer.losses[-25:])
    self.say(f"step {self.done}: loss {loss:.4f}, held out {bits:.4f} bits per byte")

  def train(self, last: int) -> bool:
    """Up to step `last`; whether it got there, rather than being interrupted. The checkpoint is written either way."""
    a, start, begun = self.a, time.perf_counter(), self.done
    with interruptible() as interrupted, tqdm(desc="train", total=last, initial=begun) as bar:
      while self.done < last and not distributed.so_anywhere(interrupted()):
        loss = self.trainer.step(self.batches[self.done])
        bar.set_postfix_str(f"loss {loss:.3f}", refresh=False)
        bar.update()
        if self.done % a.eval_every == 0 and self.done < last:
          self.measure()
        if self.done % a.checkpoint_every == 0:
          self.save()
    seconds, seen = time.perf_counter() - start, (self.done - begun) * self.recipe.batch * self.sizes.context
    rate = f"this time {seen} tokens in {seconds:.0f} s ({seen / seconds:.0f} a second)"
    self.say(f"{self.done} of {self.trainer.steps} steps; {rate}")
    self.save()
    return self.done >= last

  def record(self) -> dict[str, Any]:
    return {
      "sizes": asdict(self.sizes),
      "recipe": asdict(self.recipe),
      "mesh": str(self.trainer.layout.where),
      "data": self.a.data,
      "python": platform.python_version(),
      "corpus": self.corpus.hash,
      "steps": self.done,
      "parameters": self.parameters,
      "held_out": self.trainer.held_out,
      "losses": self.trainer.losses,
    }

  def write(self) -> None:
    """The files that were asked for, by the first process."""
    a, record, first = self.a, self.record(), distributed.process_index() == 0
    if a.out:
      stdlib = a.data == "stdlib"
      text = f"Python {platform.python_version()}'s standard library" if stdlib else f"{len(self.corpus.train)} texts"
      about = f"Trained by tinygrad.apps.train on {self.done * self.recipe.batch * self.sizes.context} tokens of {text}"
      name = "stdlib-llama" if stdlib else a.out.name.removesuffix(".gguf")
      arrays = self.trainer.arrays()
      if first:
        export_model(a.out, self.sizes, arrays, self.tokenizer, name, about)
      distributed.so_anywhere(first)  # then the file is there
      self.trainer.set_weights(read_weights(a.out))
      record["held_out_q8_0"] = bits = self.trainer.bits_per_byte(self.held_out, self.held_bytes)
      self.say(f"{a.out}: {a.out.stat().st_size} bytes, held out {bits:.4f} bits per byte as written")
    if a.losses and first:
      write_text(a.losses, json.dumps(record, indent=1) + "\n")
    if a.batches and first:
      with atomic_write(a.batches) as f:
        np.savez_compressed(f, batches=np.stack([self.batches[i] for i in range(self.done)]).astype(np.int32))
    if a.plot and first:
      bits_per_nat_byte = len(self.tokens) / self.train_bytes / math.log(2)
      write_text(a.plot, loss_curve(self.trainer.losses, self.trainer.held_out, bits_per_nat_byte))


def trained(a: argparse.Namespace, say: Callable[[str], None]) -> int:
  """Trains, measures and writes; 130 if it was interrupted. Raises TrainError."""
  t = Training(a, say)
  t.resume()
  if not t.train(min(t.trainer.steps, a.steps or t.trainer.steps)):
    say(f"stopped; go on with --resume --checkpoint-dir {a.checkpoint_dir}" if t.checkpoint else "stopped")
    return 130
  if not t.trainer.held_out or t.trainer.held_out[-1][0] != t.done:
    t.measure()
    t.save()
  t.write()
  return 0


def train_command(argv: Sequence[str] | None = None) -> int:
  """Returns the exit status: 0, 2 for a mistake of the user's, 130 after Ctrl-C."""
  p = training_options()
  a = p.parse_args(argv)
  if a.resume and not a.checkpoint_dir:
    p.error("--resume needs --checkpoint-dir, where the checkpoint lies")
  if a.checkpoint_dir and not a.resume and (kept := a.checkpoint_dir / CHECKPOINT).exists():
    p.error(f"{kept} is of an earlier run; fix: --resume goes on from it; to begin anew, give another --checkpoint-dir")
  if min(a.tokens, a.steps or 1, a.batch, a.checkpoint_every, a.eval_every) < 1 or a.steps == 0:
    p.error("--tokens, --steps, --batch, --checkpoint-every and --eval-every count from 1")
  for path in (a.out, a.losses, a.batches, a.plot):
    if path and not path.parent.is_dir():  # better now than after an hour
      p.error(f"{path}: there is no folder {path.parent}; fix: mkdir -p {path.parent}")
  try:
    distributed.initialize()
    if distributed.process_index():  # the first process tells
      sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")
    return trained(a, tqdm.write)
  except (AppError, CheckpointError, DeviceError, ShardError, OSError) as e:
    print(f"error: {e}", file=sys.stderr)
    return 2


if __name__ == "__main__":
  sys.exit(train_command())
