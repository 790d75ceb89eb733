"""Generate text with a language model, its weights cut over one or several devices; chat with it, or serve it.

Run as `python tinygrad/apps/llm.py` or `python -m tinygrad.apps.llm`; --help shows what follows.

examples:
  %(prog)s --prompt "def main():"                         the model in the package
  echo "import os" | %(prog)s --shard 2                   prompt from a pipe; weights cut over two devices
  %(prog)s --model qwen3:0.6b --chat                      a conversation, by the model's chat template
  %(prog)s --model llama.gguf --serve --slots 8           OpenAI's interface at http://127.0.0.1:8000/v1, a page at /
  %(prog)s --model llama.gguf --shard 2x2 --temperature 0 --prompt "Once upon a time"
  DEBUG=1 %(prog)s --prompt "class A:" --max-tokens 8     with what the compiler and the devices do

models: a .gguf file, a folder of Hugging Face (config.json, safetensors, tokenizer.json), or a name of one at
huggingface.co, which is downloaded once: qwen3:0.6b and others, or org/repo[:file]; docs/llm.md says which.
The text goes to standard output, everything else to standard error. Ctrl-C ends the text.
"""

import argparse
import contextlib
import io
import os
import signal
import socket
import sys
from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
  signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while modules are loaded: an end, and no traceback
if not __package__:
  # Run as a script, the search path begins with this folder, whose modules could hide others of the same name.
  sys.path[0] = str(Path(__file__).resolve().parents[2])

from tinygrad import DeviceError, ShardError, distributed
from tinygrad.apps import AppError
from tinygrad.apps.chat import Conversation, Screen, converse, typed_lines
from tinygrad.apps.checkpoint import Checkpoint, GGUFCheckpoint
from tinygrad.apps.config import Config
from tinygrad.apps.generation import Counts, Engine, Finish, Request
from tinygrad.apps.hub import find_model, is_path
from tinygrad.apps.hugging_face import Folder
from tinygrad.apps.layout import Layout
from tinygrad.apps.model import LanguageModel
from tinygrad.apps.sampling import Sampling
from tinygrad.apps.server.app import Served, Server
from tinygrad.apps.server.run import bound_socket, check_packages, serve
from tinygrad.apps.tokenizer import Tokenizer
from tinygrad.helpers import leave_output, size_to_str, tqdm, uninterrupted
from tinygrad.nn.files import CheckpointError
from tinygrad.nn.gguf import GGUF, GGUFError

CACHES = 1 << 30  # bytes that a server's caches may have, unless it is told how many slots
EMBEDDED = Path(__file__).with_name("model.gguf")


def arguments() -> argparse.ArgumentParser:
  description, _, epilog = (__doc__ or "\n" * 4).split("\n\n", 2)
  raw = argparse.RawDescriptionHelpFormatter
  p = argparse.ArgumentParser(description=description, epilog=epilog, formatter_class=raw)
  p.add_argument(
    "--model",
    metavar="MODEL",
    help="a GGUF file, a Hugging Face folder, or a name (default: the model in the package)",
  )
  p.add_argument("--prompt", help="default: standard input, whole if it is no terminal, else line by line")
  p.add_argument("--chat", action="store_true", help="by the model's chat template; /help in a terminal")
  p.add_argument("--shard", "--mesh", metavar="N", help="devices to cut the weights over: 2, or a mesh: 2x2, dp=2,tp=2")
  p.add_argument("--devices", metavar="NAMES", help="which: GPU:0,GPU:1 (default: the first of the default kind)")
  p.add_argument("--explain", action="store_true", help="print what a decoding step sends between devices, and exit")
  p.add_argument("--ctx", type=int, metavar="N", help="tokens of memory (default: the model's own, at most 4096)")
  p.add_argument("--cache", default="f16", choices=("f16", "f32", "q8_0"), help="keys and values (default: f16)")
  p.add_argument("--exact", action="store_true", help="round no activations where weights are quantised: slower")
  text = p.add_argument_group("text")
  text.add_argument("--max-tokens", type=int, metavar="N", help="at most (default: 128; with --chat the context's end)")
  text.add_argument("--temperature", type=float, default=0.7, metavar="T", help="0: the likeliest token (default: 0.7)")
  text.add_argument("--top-k", type=int, default=0, metavar="K", help="of the K likeliest tokens (default: 0, all)")
  text.add_argument("--top-p", type=float, default=1.0, metavar="P", help="of the likeliest that reach P (default: 1)")
  text.add_argument(
    "--min-p", type=float, default=0.0, metavar="P", help="of those this near to the likeliest (default: 0)"
  )
  text.add_argument(
    "--repetition-penalty", type=float, default=1.0, metavar="R", help="above 1: less of it (default: 1)"
  )
  text.add_argument(
    "--presence-penalty", type=float, default=0.0, metavar="X", help="less of what was there (default: 0)"
  )
  text.add_argument("--frequency-penalty", type=float, default=0.0, metavar="X", help="for each time (default: 0)")
  text.add_argument("--seed", type=int, default=0, help="same seed, same text (default: 0)")
  text.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end before this; may be given again")
  text.add_argument("--system", default="", metavar="TEXT", help="what --chat tells the model first")
  server = p.add_argument_group("server")
  server.add_argument("--serve", action="store_true", help="OpenAI's HTTP interface, and a page to chat")
  server.add_argument("--host", default="127.0.0.1", help="where to listen (default: 127.0.0.1, this machine)")
  server.add_argument("--port", type=int, default=8000, help="default: 8000")
  server.add_argument("--api-key", metavar="KEY", help="that clients have to send")
  server.add_argument("--slots", type=int, metavar="N", help="texts at once (default: 4 to 16 with --serve)")
  server.add_argument("--queue", type=int, default=64, metavar="N", help="requests that may wait (default: 64)")
  server.add_argument("--name", help="of the model, for clients (default: its file's)")
  return p


def sampling_of(args: argparse.Namespace) -> Sampling:
  """Raises SamplingError."""
  return Sampling(
    temperature=args.temperature,
    top_k=args.top_k,
    top_p=args.top_p,
    min_p=args.min_p,
    repetition=args.repetition_penalty,
    presence=args.presence_penalty,
    frequency=args.frequency_penalty,
    seed=args.seed,
  )


def statistics(model: LanguageModel, counts: Counts) -> list[str]:
  whole, most = model.weight_bytes
  rate = f"{counts.decoded / counts.decode_seconds:.1f} tokens/s" if counts.decoded else "no rate"
  moves = ", ".join(f"{n} {kind}" for kind, n in sorted(model.collectives_of_step().items()))
  full = [f"the context of {model.c.context} tokens is full: --ctx has more, up to the model's own length"]
  return [
    *(full if counts.full else []),
    f"{counts.read} tokens read in {counts.read_seconds:.2f} s, {counts.decoded} decoded at {rate}",
    f"weights: {size_to_str(whole)}, per device {size_to_str(most)} ({most / whole:.0%}) on {model.layout.count}",
    f"collectives of a step: {moves or 'none'}",
  ]


def model_path(args: argparse.Namespace) -> Path:
  """Where the model lies, in the end. Raises AppError."""
  if args.model is None and not EMBEDDED.exists():
    fix = "python -m tinygrad.apps.train makes one; or name one with --model"
    raise AppError(f"this package holds no model ({EMBEDDED.name} is not there)\n  fix: {fix}")
  if args.model is None or not is_path(args.model):
    return EMBEDDED if args.model is None else find_model(args.model)
  path = Path(os.path.expanduser(args.model))  # Path.expanduser raises where there is no such user
  if not args.model or not path.exists():
    raise AppError(f"--model {args.model!r}: there is no such file or folder\n  fix: --model with one, or with a name")
  return path


def default_slots(c: Config) -> int:
  """Of a server: many where their caches are small, since a step's cost hardly grows with the texts in it."""
  one = 2 * c.layers * c.kv_heads * c.head_dim * c.context * 2  # bytes of float16
  return max(4, min(16, CACHES // one))


def load_model(args: argparse.Namespace) -> tuple[LanguageModel, Tokenizer]:
  path = model_path(args)
  named = args.model is not None and not is_path(args.model)
  name = args.name or (args.model if named else path.resolve().name.removesuffix(".gguf"))
  args.name = name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")  # JSON is UTF-8, a file's may be none
  if path.is_dir():
    source: Checkpoint = Folder(path)
    tokenizer, total = Tokenizer.from_folder(path), sum(f.stat().st_size for f in path.glob("*.safetensors"))
  else:
    g = GGUF(path)
    source, tokenizer, total = GGUFCheckpoint(g), Tokenizer.from_gguf(g), sum(t.nbytes for t in g.tensors.values())
  with tqdm(desc="loading weights", total=total, unit="B", unit_scale=True, leave=False) as bar:
    slots = args.slots or (default_slots(Config.read(source, args.ctx)) if args.serve else 1)
    layout = Layout.parse(args.shard, args.devices)
    model = LanguageModel(source, layout, args.ctx, bar.update, slots, args.cache, args.exact)
  if (args.ctx or 0) > model.c.context:
    print(f"--ctx {args.ctx}: this model was made for {model.c.context} tokens, which it has", file=sys.stderr)
  if (copies := model.layout.copies) > 1:
    print(f"{model.c.kv_heads} kv heads on {layout.count} devices: each is kept by {copies}", file=sys.stderr)
  return model, tokenizer


def prompts(args: argparse.Namespace) -> Iterator[str]:
  """The one prompt; or the lines that somebody types, until the end of input."""
  if args.prompt is not None:
    yield args.prompt
  elif not sys.stdin.isatty():
    yield sys.stdin.read().removesuffix("\n")  # which `echo` adds
  else:
    yield from typed_lines()


def go_on(args: argparse.Namespace, engine: Engine, screen: Screen) -> bool:
  """Prints each prompt and what follows it. Whether Ctrl-C ended it. Raises AppError."""

  def parts(prompt: str, request: Request) -> Generator[tuple[str, bool], None, None]:
    yield prompt, False
    with contextlib.closing(engine.stream(request)) as events:
      for event in events:
        if event.finish == Finish.ERROR:
          raise AppError(event.error)
        yield event.text, False

  for prompt in prompts(args):
    ids = engine.tokenizer.encode(prompt)
    if not ids:
      if engine.tokenizer.bos is None:
        raise AppError("the prompt is empty\n  fix: --prompt 'some text'")
      ids = [engine.tokenizer.bos]
    request = Request(ids, args.max_tokens or 128, sampling_of(args), tuple(args.stop))
    engine.check(request)
    if screen.show(parts(prompt, request)):
      return True
  return False


def place_to_serve(args: argparse.Namespace) -> socket.socket | None:
  """Before a model is loaded: where it will be served, if it will. Raises AppError."""
  if not args.serve:
    return None
  if (n := distributed.process_count()) > 1:
    fix = "start one process; --shard N cuts the weights over its devices"
    raise AppError(f"--serve: a client asks one process, and here are {n} that would have to do the same\n  fix: {fix}")
  check_packages()
  return bound_socket(args.host, args.port)


def run(args: argparse.Namespace, engine: Engine, place: socket.socket | None) -> int:
  """The exit status. Raises AppError, OSError."""
  if place is not None:
    local = args.host in ("127.0.0.1", "localhost", "::1")
    if not local and args.api_key is None:
      print(f"whoever reaches {args.host} can use this server: --api-key KEY keeps them out", file=sys.stderr)
    served = Served(args.name, replace(sampling_of(args), seed=None), args.api_key, local)
    serve(Server(engine, served), place)
    return 0
  screen = Screen.here()
  if not args.chat:
    return 130 if go_on(args, engine, screen) else 0
  there = args.prompt is None and sys.stdin.isatty()
  limit = args.max_tokens or (None if there else 128)
  conversation = Conversation(engine, sampling_of(args), limit, tuple(args.stop), args.system)
  return 130 if converse(conversation, prompts(args), screen, there) else 0


def open_streams() -> None:
  """A standard stream that is closed is empty, and takes anything; text that is no UTF-8 is refused where it is read
  as tokens, and what a terminal cannot show is replaced."""
  for name in ("stdin", "stdout", "stderr"):
    if getattr(sys, name) is None:
      setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8"))
    if isinstance(stream := getattr(sys, name), io.TextIOWrapper):
      stream.reconfigure(errors="surrogateescape" if name == "stdin" else "replace")


def checked_arguments(argv: list[str] | None) -> argparse.Namespace:
  """Ends the program with a usage message where one is out of its range."""
  parser = arguments()
  args = parser.parse_args(argv)
  for name, least in {"temperature": 0, "max_tokens": 1, "ctx": 1, "slots": 1, "queue": 1}.items():
    if (n := getattr(args, name)) is not None and n < least:
      parser.error(f"--{name.replace('_', '-')} {n} is below {least}")
  if not 0 <= args.port < 1 << 16:
    parser.error(f"--port {args.port} is none from 0 to 65535")
  if args.serve and (args.chat or args.prompt is not None):
    parser.error("--serve answers clients: leave out --chat and --prompt")
  if args.api_key is not None and (not args.api_key.isprintable() or args.api_key != (args.api_key.strip() or None)):
    parser.error("--api-key is empty, or holds what no client can send")
  return args


def main(argv: list[str] | None = None) -> int:
  """Returns the exit status: 0, 2 for a mistake of the user's, 130 after Ctrl-C."""
  args = checked_arguments(argv)
  engine, status = None, 0
  if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
    signal.signal(signal.SIGINT, signal.default_int_handler)
  try:
    open_streams()
    distributed.initialize()
    if distributed.process_index():  # the first process writes
      sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")
    sampling_of(args)
    place = place_to_serve(args)
    model, tokenizer = load_model(args)
    if args.explain:
      print(model.explained(), flush=True)
      return 0
    engine = Engine(model, tokenizer, args.queue)
    status = run(args, engine, place)
    sys.stdout.flush()
  except KeyboardInterrupt:
    status = 130
  except BrokenPipeError:  # whoever read the text has enough of it
    leave_output()
    return 128 + signal.SIGPIPE
  except MemoryError as e:
    problem = (str(e) or "there is no memory left").splitlines()[0]
    print(f"error: {problem}\n  fix: a smaller --ctx or --slots, --cache q8_0, or a smaller model", file=sys.stderr)
    return 2
  except (AppError, GGUFError, CheckpointError, ShardError, DeviceError, OSError) as e:
    # a line of this program says nothing to whoever runs it
    lines = [line for line in str(e).splitlines() if not line.startswith("    in ")]
    print("error:", "\n".join(lines), file=sys.stderr)
    leave_output()
    return 2
  try:
    with uninterrupted():  # they are soon there
      if engine is not None and engine.counts.read:
        print("\n".join(statistics(model, engine.counts)), file=sys.stderr)
  except KeyboardInterrupt:
    status = 130
  return status


if __name__ == "__main__":
  sys.exit(main())
