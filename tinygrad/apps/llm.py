"""Generate text with a language model, its weights cut over one or several devices.

Run as `python tinygrad/apps/llm.py` or `python -m tinygrad.apps.llm`; --help shows what follows.

examples:
  %(prog)s --prompt "def main():"                         the model in the package
  echo "import os" | %(prog)s --shard 2                   prompt from a pipe; weights cut over two devices
  %(prog)s --model llama.gguf --chat                      a conversation, by the model's chat template
  %(prog)s --model llama.gguf --shard 2x2 --temperature 0 --prompt "Once upon a time"
  DEBUG=1 %(prog)s --prompt "class A:" --max-tokens 8     with what the compiler and the devices do

models: a .gguf file, or a folder of Hugging Face (config.json, safetensors, tokenizer.json); docs/llm.md says which.
The text goes to standard output, everything else to standard error. Ctrl-C ends the text.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

if not __package__:
  # Run as a script, the search path begins with this folder, whose modules could hide others of the same name.
  sys.path[0] = str(Path(__file__).resolve().parents[2])

from tinygrad import DeviceError, ShardError
from tinygrad.apps import AppError
from tinygrad.apps.checkpoint import Checkpoint, GGUFCheckpoint
from tinygrad.apps.hugging_face import Folder
from tinygrad.apps.model import LanguageModel, Layout
from tinygrad.apps.sampling import Sampler, Sampling
from tinygrad.apps.tokenizer import TextStream, Tokenizer
from tinygrad.helpers import interruptible, size_to_str, tqdm
from tinygrad.nn.files import CheckpointError
from tinygrad.nn.gguf import GGUF, GGUFError

EMBEDDED = Path(__file__).with_name("model.gguf")


def arguments() -> argparse.ArgumentParser:
  description, _, epilog = (__doc__ or "\n" * 4).split("\n\n", 2)
  raw = argparse.RawDescriptionHelpFormatter
  p = argparse.ArgumentParser(description=description, epilog=epilog, formatter_class=raw)
  p.add_argument(
    "--model",
    type=Path,
    metavar="PATH",
    help="a GGUF file or a Hugging Face folder (default: the model in the package)",
  )
  p.add_argument("--prompt", help="default: standard input, whole if it is no terminal, else line by line")
  p.add_argument("--shard", default="1", metavar="N", help="devices to cut the weights over: 2, or a mesh such as 2x2")
  p.add_argument("--temperature", type=float, default=0.7, metavar="T", help="0: the likeliest token (default: 0.7)")
  p.add_argument("--seed", type=int, default=0, help="same seed, same text (default: 0)")
  p.add_argument("--max-tokens", type=int, default=128, metavar="N", help="tokens of text at most (default: 128)")
  p.add_argument("--ctx", type=int, metavar="N", help="tokens of memory (default: the model's own, at most 4096)")
  p.add_argument("--chat", action="store_true", help="put the prompt into the model's chat template")
  return p


@dataclass(slots=True)
class Statistics:
  prompt_tokens: int = 0
  prompt_seconds: float = 0.0
  tokens: int = 0
  seconds: float = 0.0

  def lines(self, model: LanguageModel) -> list[str]:
    whole, most = model.weight_bytes
    rate = f"{self.tokens / self.seconds:.1f} tokens/s" if self.seconds else "no rate"
    moves = ", ".join(f"{n} {kind}" for kind, n in sorted(model.collectives_of_step().items()))
    return [
      f"{self.prompt_tokens} tokens read in {self.prompt_seconds:.2f} s, {self.tokens} decoded at {rate}",
      f"weights: {size_to_str(whole)}, per device {size_to_str(most)} ({most / whole:.0%}) on {model.layout.count}",
      f"collectives of a step: {moves or 'none'}",
    ]


def generate(
  model: LanguageModel, ids: list[int], limit: int, sample: Sampler, ends: frozenset[int], stats: Statistics
) -> Iterator[int]:
  """Tokens that follow the prompt `ids`, until one of `ends`, or `limit` tokens, or the end of the context."""
  start = time.perf_counter()
  logits, pos = model.prefill(ids, 0), len(ids)
  stats.prompt_tokens += len(ids)
  stats.prompt_seconds += time.perf_counter() - start
  for i in range(limit):
    token = sample(logits).token
    if token in ends:
      return
    yield token
    if i == limit - 1 or pos == model.c.context:
      return
    start = time.perf_counter()
    logits = model.decode([token], [pos])[0]
    pos += 1
    stats.tokens += 1
    stats.seconds += time.perf_counter() - start


def print_tokens(ids: Iterator[int], tokenizer: Tokenizer) -> list[int]:
  """Print tokens as they come; returns them. Ctrl-C ends the text after a token, then raises KeyboardInterrupt."""
  out, text = list[int](), TextStream(tokenizer)
  with interruptible() as interrupted:
    for token in ids:
      out.append(token)
      print(text.push(token), end="", flush=True)
      if interrupted():
        break
    print(text.rest(), flush=True)
    if interrupted():
      raise KeyboardInterrupt
  return out


def load_model(args: argparse.Namespace) -> tuple[LanguageModel, Tokenizer]:
  path = args.model or EMBEDDED
  if args.model is None and not path.exists():
    fix = "python extra/train_llm.py trains it; or name one with --model PATH"
    raise AppError(f"this package holds no model ({path.name} is not there)\n  fix: {fix}")
  if path.is_dir():
    source: Checkpoint = Folder(path)
    tokenizer, total = Tokenizer.from_folder(path), sum(f.stat().st_size for f in path.glob("*.safetensors"))
  else:
    g = GGUF(path)
    source, tokenizer, total = GGUFCheckpoint(g), Tokenizer.from_gguf(g), sum(t.nbytes for t in g.tensors.values())
  with tqdm(desc="loading weights", total=total, unit="B", unit_scale=True, leave=False) as bar:
    return LanguageModel(source, Layout.parse(args.shard), args.ctx, bar.update), tokenizer


def prompts(args: argparse.Namespace) -> Iterator[str]:
  """The one prompt; or the lines that somebody types, until the end of input."""
  if args.prompt is not None:
    yield args.prompt
  elif not sys.stdin.isatty():
    yield sys.stdin.read().removesuffix("\n")  # which `echo` adds
  else:
    while True:
      try:
        yield input("> ")
      except EOFError:
        return


def converse(args: argparse.Namespace, model: LanguageModel, tokenizer: Tokenizer, stats: Statistics) -> None:
  sample = Sampler(Sampling(args.temperature, seed=args.seed))
  messages: list[dict[str, str]] = []
  for prompt in prompts(args):
    if args.chat:
      messages.append({"role": "user", "content": prompt})
      ids = tokenizer.encode(tokenizer.chat(messages), bos=False)
    else:
      ids = tokenizer.encode(prompt)
      print(prompt, end="", flush=True)
    if not ids:
      if tokenizer.bos is None:
        raise AppError("the prompt is empty\n  fix: --prompt 'some text'")
      ids = [tokenizer.bos]
    answer = print_tokens(generate(model, ids, args.max_tokens, sample, tokenizer.ends, stats), tokenizer)
    messages.append({"role": "assistant", "content": tokenizer.decode(answer)})


def main(argv: list[str] | None = None) -> int:
  """Returns the exit status: 0, 2 for a mistake of the user's, 130 after Ctrl-C."""
  parser = arguments()
  args = parser.parse_args(argv)
  if args.temperature < 0 or args.max_tokens < 1 or (args.ctx is not None and args.ctx < 1):
    parser.error("--temperature must not be negative; --max-tokens and --ctx must be positive")
  stats, model, status = Statistics(), None, 0
  try:
    model, tokenizer = load_model(args)
    converse(args, model, tokenizer, stats)
  except KeyboardInterrupt:
    status = 130
  except (AppError, GGUFError, CheckpointError, ShardError, DeviceError, OSError) as e:
    print(f"error: {e}", file=sys.stderr)
    return 2
  if model is not None and stats.prompt_tokens:
    print("\n".join(stats.lines(model)), file=sys.stderr)
  return status


if __name__ == "__main__":
  sys.exit(main())
