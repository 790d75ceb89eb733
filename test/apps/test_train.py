"""The training program against PyTorch, against itself resumed on other devices, and against the app."""

import json
import math
import re
import signal
import xml.etree.ElementTree as ElementTree
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from tinygrad import Tensor, nn
from tinygrad.apps import train as program
from tinygrad.apps.checkpoint import GGUFCheckpoint
from tinygrad.apps.layout import Layout as AppLayout
from tinygrad.apps.model import LanguageModel as AppModel
from tinygrad.apps.tokenizer import Tokenizer
from tinygrad.apps.train_data import Batches, Corpus, TrainError, encode_documents, train_tokenizer
from tinygrad.apps.train_files import export_model, loss_curve, read_weights
from tinygrad.apps.train_model import Recipe, Sizes, Trainer, TrainLayout
from tinygrad.nn.gguf import GGUF

DATA = Path(__file__).parents[1] / "data"
SMALL = Sizes(dim=64, layers=2, heads=4, kv_heads=2, ffn=128, vocab=512, context=32)
TEN_STEPS = Recipe(tokens=10 * 4 * 32, batch=4, lr=1e-2, warmup=0.2)


def windows(steps: int = 10) -> np.ndarray:
  """Token windows int32[steps, 4, 33] in which there is something to learn: few tokens occur, most often doubled."""
  few = np.random.RandomState(1).randint(0, 16, (steps, 4, 17)).astype(np.int32)
  return np.repeat(few, 2, axis=-1)[..., :33]


def train(trainer: Trainer, batches: np.ndarray) -> list[float]:
  return [trainer.step(b) for b in batches]


# ---------------------------------------------------------------- the same losses as PyTorch


@pytest.mark.parametrize("mesh", ["1", "2x2"])
def test_losses_are_those_of_pytorch(mesh):
  """test/data/train_llm_pytorch.py wrote them: model and optimizer in PyTorch, from the same weights and tokens."""
  want = json.loads((DATA / "train_llm_pytorch.json").read_text())["small"]
  assert want[0] - want[-1] > 2, "nothing is learned: the losses could not tell a wrong step from a right one"
  got = train(Trainer(SMALL, TEN_STEPS, TrainLayout.parse(mesh)), windows())
  np.testing.assert_allclose(got, want, atol=5e-3, rtol=0)
  np.testing.assert_allclose(got[:3], want[:3], atol=1e-4, rtol=0)


def test_a_constant_rate_would_be_noticed():
  want = json.loads((DATA / "train_llm_pytorch.json").read_text())["small"]
  trainer = Trainer(SMALL, TEN_STEPS, TrainLayout.parse("1"))
  trainer.steps = 10**9  # the rate then never leaves its rise
  assert np.abs(np.array(train(trainer, windows())) - want).max() > 0.1


def test_first_30_losses_of_the_run():
  """The batches of the first 30 steps of the run, on its mesh: the losses that PyTorch has, and that the run had."""
  batches = np.load(DATA / "train_llm_batches.npz")["batches"].astype(np.int32)
  trainer = Trainer(Sizes(), Recipe(), TrainLayout.parse("2x2"))
  got = train(trainer, batches)
  pytorch = json.loads((DATA / "train_llm_pytorch.json").read_text())["first_30"]
  assert pytorch[0] - pytorch[-1] > 1 and len(batches) == len(pytorch) == 30
  # Sums in another order differ by 1e-6 at first; each step of AdamW, which divides by small roots, widens that.
  np.testing.assert_allclose(got, pytorch, atol=2e-3, rtol=0)
  run = json.loads((DATA / "train_llm_losses.json").read_text())
  assert run["recipe"] == asdict(Recipe()) and run["sizes"] == asdict(Sizes())
  np.testing.assert_allclose(got, run["losses"][:30], atol=2e-3, rtol=0)


# ---------------------------------------------------------------- corpus, tokenizer, batches


@pytest.fixture
def library(tmp_path, monkeypatch):
  """A standard library of 60 modules, in which `test` and generated files must be left out."""
  root = tmp_path / "lib"
  for i in range(60):
    path = root / ("package" if i % 2 else ".") / f"module{i}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"def function_{i}_{j}(x, y):\n  return x * {j} + y\n" for j in range(40)]
    path.write_text("\n".join(lines))
  for name in ("test/test_a.py", "encodings/cp1.py", "site-packages/b.py", "_sysconfigdata_x.py", "empty.py"):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("" if name == "empty.py" else "left_out = 1\n")
  monkeypatch.setattr("sysconfig.get_path", lambda name: str(root))
  return root


def test_corpus_holds_out_by_name_and_hashes_all(library):
  c = Corpus.of_stdlib()
  names = [{name for name, _ in documents} for documents in (c.train, c.held_out)]
  assert len(names[0]) + len(names[1]) == 60 and not names[0] & names[1] and names[1]
  assert all("left_out" not in text for _, text in c.train + c.held_out)
  (library / "module0.py").write_text("changed = True\n")
  changed = Corpus.of_stdlib()
  assert changed.hash != c.hash
  assert [{name for name, _ in documents} for documents in (changed.train, changed.held_out)] == names


def test_tokenizer_is_deterministic_and_exact(library):
  c = Corpus.of_stdlib()
  texts = [text for _, text in c.train]
  first, second = (train_tokenizer(texts, 300) for _ in range(2))
  assert first.to_str() == second.to_str()
  ids = encode_documents(first, [text for _, text in c.held_out])
  assert (ids == 0).sum() == (ids == 1).sum() == len(c.held_out) and ids[0] == 0 and ids[-1] == 1
  from tokenizers import decoders

  first.decoder = decoders.ByteLevel()
  assert first.decode(ids.tolist()) == "".join(text for _, text in c.held_out)
  with pytest.raises(TrainError, match="these texts give .* tokens, not 100000"):
    train_tokenizer(texts, 100_000)


def test_batches_cover_each_epoch_once():
  steps = Recipe(tokens=2 * 10 * 4, batch=2).steps(4)
  tokens = np.arange(10 * 4 + 1).astype(np.uint16)
  batches = Batches(tokens, 4, 2, steps, 0)
  seen = np.concatenate([batches[i] for i in range(steps)])
  assert seen.shape == (20, 5)
  for epoch in (seen[:10], seen[10:]):
    assert sorted(epoch[:, 0]) == list(range(0, 40, 4))
  assert (seen == seen[:, :1] + np.arange(5)).all()
  with pytest.raises(IndexError, match="the schedule has no step 10"):
    batches[10]
  with pytest.raises(TrainError, match="do not fill one window of 4\n  fix: more text, or a smaller --context"):
    Batches(tokens[:4], 4, 2, steps, 0)


def test_rate_rises_then_falls_to_nothing():
  r = Recipe(lr=1.0, warmup=0.1)
  rates = [r.rate(i, 100) for i in range(100)]
  np.testing.assert_allclose(rates[:10], np.arange(1, 11) / 10)
  np.testing.assert_allclose(rates[10:], 0.5 * (1 + np.cos(np.pi * np.arange(90) / 90)))


# ---------------------------------------------------------------- measuring, resuming, exporting


def test_bits_per_byte_of_a_uniform_model():
  trainer = Trainer(SMALL, TEN_STEPS, TrainLayout.parse("1"))
  trainer.set_weights({k: np.zeros_like(w) for k, w in trainer.arrays().items()})
  tokens = np.random.RandomState(0).randint(0, 512, 301).astype(np.uint16)  # 300 targets: the last window is not full
  assert trainer.bits_per_byte(tokens, 1000) == pytest.approx(300 * math.log2(512) / 1000, rel=1e-6)


def test_bits_per_byte_counts_real_targets_only():
  """Against numpy on the model's own logits, window by window."""
  trainer = Trainer(SMALL, TEN_STEPS, TrainLayout.parse("1"))
  train(trainer, windows(2))
  tokens = windows(1).reshape(-1)[:110].astype(np.uint16)
  total = 0.0
  for i in range(0, 109, 32):
    x, y = tokens[i : min(i + 32, 109)], tokens[i + 1 : i + 33]
    padded = np.pad(x, (0, 32 - len(x))).astype(np.int32)
    logits = trainer.model.logits(Tensor(padded[None])).numpy()[0, : len(x)].astype(np.float64)
    total += float((np.log(np.exp(logits).sum(-1)) - logits[np.arange(len(x)), y]).sum())
  assert trainer.bits_per_byte(tokens, 500) == pytest.approx(total / math.log(2) / 500, rel=1e-5)


def test_resumed_run_has_the_very_losses(tmp_path):
  straight = Trainer(SMALL, TEN_STEPS, TrainLayout.parse("2x2"))
  want = train(straight, windows())
  first = Trainer(SMALL, TEN_STEPS, TrainLayout.parse("2x2"))
  train(first, windows()[:4])
  first.save(tmp_path / "c.safetensors", "corpus")
  second = Trainer(SMALL, TEN_STEPS, TrainLayout.parse("2x2"))
  second.load(tmp_path / "c.safetensors", "corpus")
  train(second, windows()[4:])
  assert second.losses == want
  for name, w in straight.arrays().items():
    np.testing.assert_array_equal(second.arrays()[name], w)


def test_checkpoint_of_another_run_is_refused(tmp_path):
  trainer = Trainer(SMALL, TEN_STEPS, TrainLayout.parse("1"))
  trainer.save(tmp_path / "c.safetensors", "corpus")
  with pytest.raises(TrainError, match="is of another run:\n  there: .*\n  here: .*\n  fix: the same options"):
    trainer.load(tmp_path / "c.safetensors", "another corpus")
  with pytest.raises(TrainError, match="is of another run:\n  there: .*\n  here: .*\n  fix: the same options"):
    Trainer(SMALL, Recipe(seed=1), TrainLayout.parse("1")).load(tmp_path / "c.safetensors", "corpus")
  nn.state.safe_save({"x": Tensor([1.0])}, tmp_path / "foreign.safetensors")
  with pytest.raises(TrainError, match="is of another run:\n  there: .*\n  here: .*\n  fix: the same options"):
    trainer.load(tmp_path / "foreign.safetensors", "corpus")


def test_the_app_reads_the_model_as_trained(library, tmp_path):
  """The app on the written file against the training model with the same weights: row order, names, metadata."""
  c = Corpus.of_stdlib()
  s = Sizes(dim=64, layers=2, heads=4, kv_heads=2, ffn=128, vocab=300, context=32)
  tokenizer = train_tokenizer([text for _, text in c.train], s.vocab)
  tokens = encode_documents(tokenizer, [text for _, text in c.train])
  recipe = Recipe(tokens=6 * 4 * 32, batch=4, lr=1e-2)
  trainer, batches = Trainer(s, recipe, TrainLayout.parse("1")), Batches(tokens, 32, 4, 6, 0)
  for i in range(6):
    trainer.step(batches[i])
  path = tmp_path / "model.gguf"
  export_model(path, s, trainer.arrays(), tokenizer, "small", "a test")
  read = read_weights(path)
  for name, w in trainer.arrays().items():
    assert np.abs(read[name] - w).max() <= np.abs(w).max() / 127, name
  trainer.set_weights(read)
  ids = tokens[:20].astype(np.int32)
  padded = np.pad(ids, (0, s.context - len(ids)))
  want = trainer.model.logits(Tensor(padded[None])).numpy()[0, len(ids) - 1]
  got = AppModel(GGUFCheckpoint(GGUF(path)), AppLayout.parse("1"), exact=True).prefill(ids.tolist())
  np.testing.assert_allclose(got, want, atol=1e-3)
  assert np.abs(want).max() > 0.1


# ---------------------------------------------------------------- the program


@pytest.fixture
def tiny(library, monkeypatch):
  monkeypatch.setattr(program, "TINY", Sizes(dim=32, layers=1, heads=4, kv_heads=4, ffn=64, vocab=300, context=16))
  return ["--data", "stdlib", "--tiny", "--mesh", "1", "--tokens", str(6 * 8 * 16)]


def test_ctrl_c_leaves_a_checkpoint_to_go_on_from(tiny, tmp_path, monkeypatch):
  assert program.train_command([*tiny, "--losses", str(tmp_path / "straight.json")]) == 0
  step = Trainer.step

  def interrupted_in_the_third(self, batch):
    if len(self.losses) == 2:
      signal.raise_signal(signal.SIGINT)
    return step(self, batch)

  monkeypatch.setattr(Trainer, "step", interrupted_in_the_third)
  assert program.train_command([*tiny, "--checkpoint-dir", str(tmp_path)]) == 130
  monkeypatch.setattr(Trainer, "step", step)
  files = [tmp_path / name for name in ("resumed.json", "model.gguf", "curve.svg", "batches.npz")]
  options = [x for pair in zip(("--losses", "--out", "--plot", "--batches"), map(str, files)) for x in pair]
  assert program.train_command([*tiny, "--checkpoint-dir", str(tmp_path), "--resume", *options]) == 0
  resumed, straight = (json.loads((tmp_path / f"{n}.json").read_text()) for n in ("resumed", "straight"))
  assert resumed["losses"] == straight["losses"] and len(straight["losses"]) == 6
  assert resumed["held_out"] == straight["held_out"]
  assert resumed["held_out_q8_0"] == pytest.approx(resumed["held_out"][-1][1], rel=0.02)
  assert np.load(files[3])["batches"].shape == (6, 8, 17)
  assert not list(tmp_path.glob("*.tmp"))


def test_options_that_cannot_be(tiny, tmp_path, capsys):
  with pytest.raises(SystemExit):
    program.train_command(["--data", "x", "--resume"])
  assert "--resume needs --checkpoint-dir" in capsys.readouterr().err
  (tmp_path / program.CHECKPOINT).write_bytes(b"hours of work")
  with pytest.raises(SystemExit):
    program.train_command([*tiny, "--checkpoint-dir", str(tmp_path)])
  assert "is of an earlier run; fix: --resume goes on from it" in capsys.readouterr().err
  assert (tmp_path / program.CHECKPOINT).read_bytes() == b"hours of work"
  with pytest.raises(SystemExit):
    program.train_command(["--data", "x", "--tokens", "0"])
  assert "count from 1" in capsys.readouterr().err
  with pytest.raises(SystemExit):
    program.train_command(["--data", "x", "--out", "no/such/folder/model.gguf"])
  assert "there is no folder no/such/folder; fix: mkdir -p" in capsys.readouterr().err


def test_a_loss_that_is_no_number_ends_the_run():
  trainer = Trainer(SMALL, TEN_STEPS, TrainLayout.parse("1"))
  trainer.set_weights({k: np.full_like(w, np.nan) for k, w in trainer.arrays().items()})
  with pytest.raises(TrainError, match="the loss of step 1 is nan\n  fix: a lower --lr"):
    trainer.step(windows(1)[0])


def test_loss_curve_is_a_picture_of_the_numbers():
  svg = ElementTree.fromstring(loss_curve([6.0, 3.0, 2.0], [(3, 1.5)], 1.0))
  ns = "{http://www.w3.org/2000/svg}"
  points = [
    [tuple(map(float, p.split(","))) for p in line.get("points").split()] for line in svg.findall(f"{ns}polyline")
  ]
  curve = next(line for line in points if len(line) == 3)
  xs, ys = zip(*curve)
  assert xs[0] < xs[1] < xs[2] and ys[0] < ys[1] < ys[2]  # y grows downwards
  assert (ys[1] - ys[0]) / (ys[2] - ys[1]) == pytest.approx(3, rel=0.01)
  assert len(svg.findall(f"{ns}circle")) == 1


# ---------------------------------------------------------------- any folder, any devices


@pytest.fixture
def texts(tmp_path):
  """A folder of texts, and of what is none."""
  root = tmp_path / "texts"
  for i in range(40):
    path = root / ("deep" if i % 3 else ".") / f"text{i}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"# Text {i}, größe\n" + f"line {i} of the text and another line of it\n" * 12)
  (root / "picture.png").write_bytes(bytes(range(256)))
  (root / "zeros").write_bytes(b"a\0b")
  (root / "empty.txt").write_text(" \n")
  (root / ".git").mkdir()
  (root / ".git" / "config").write_text("hidden")
  return root


def test_a_folder_of_texts(texts, tmp_path):
  c = Corpus.of_folder(texts)
  names = [name for name, _ in c.train + c.held_out]
  assert len(names) == 40 and all(name.endswith(".md") for name in names) and c.held_out
  assert Corpus.of_folder(texts) == c
  one = tmp_path / "one"
  one.mkdir()
  (one / "a.txt").write_text("a line\n" * 100)
  c = Corpus.of_folder(one)
  assert c.train[0][1] + c.held_out[0][1] == "a line\n" * 100 and c.held_out[0][1].startswith("a line\n")
  (one / "b.txt").write_text("b")
  c = Corpus.of_folder(one)
  assert len(c.train) == len(c.held_out) == 1
  (tmp_path / "none").mkdir()
  with pytest.raises(TrainError, match="has no text in it\n  fix: --data with a folder of text files in UTF-8"):
    Corpus.of_folder(tmp_path / "none")
  with pytest.raises(TrainError, match="is no folder\n  fix: --data with a folder"):
    Corpus.of_folder(tmp_path / "nowhere")


def test_a_run_goes_on_on_other_devices(tmp_path):
  """Sums in another order, so no longer bit by bit."""
  want = train(Trainer(SMALL, TEN_STEPS, TrainLayout.parse("1")), windows())
  trainer = Trainer(SMALL, TEN_STEPS, TrainLayout.parse("1"))
  for mesh, part in (("2x2", slice(2, 4)), ("2", slice(4, 6)), ("4x1", slice(6, 7))):
    train(trainer, windows()[len(trainer.losses) : part.start])
    trainer.save(tmp_path / "c.safetensors", "corpus")
    trainer = Trainer(SMALL, TEN_STEPS, TrainLayout.parse(mesh))
    trainer.load(tmp_path / "c.safetensors", "corpus")
    assert len(trainer.losses) == part.start
    train(trainer, windows()[part])
  np.testing.assert_allclose(trainer.losses, want[:7], atol=2e-3, rtol=0)


def test_the_program_from_texts_to_a_text(texts, tmp_path, capsys):
  """Trained on a mesh, gone on with on one device, and the file says what the last weights say."""
  sizes = ["--dim", "32", "--layers", "1", "--heads", "4", "--kv-heads", "2", "--ffn", "64", "--vocab", "300"]
  asked = ["--data", str(texts), *sizes, "--context", "16", "--tokens", "1600", "--batch", "4", "--lr", "0.01"]
  kept = ["--checkpoint-dir", str(tmp_path / "run")]
  assert program.train_command([*asked, *kept, "--mesh", "2x2", "--steps", "12"]) == 0
  out, plot = tmp_path / "model.gguf", tmp_path / "loss.svg"
  record = tmp_path / "losses.json"
  more = ["--out", str(out), "--plot", str(plot), "--losses", str(record)]
  assert program.train_command([*asked, *kept, "--resume", "--mesh", "1", *more]) == 0
  found = json.loads(record.read_text())
  assert found["steps"] == len(found["losses"]) == 25 and found["losses"][0] - found["losses"][-1] > 1
  assert found["held_out_q8_0"] == pytest.approx(found["held_out"][-1][1], rel=0.02)
  assert plot.read_text().startswith("<svg") and "going on after 12 steps" in capsys.readouterr().err
  g = GGUF(out)
  tokenizer = Tokenizer.from_gguf(g)
  ids = tokenizer.encode("line 5 of the ")
  assert ids[0] == 0 and tokenizer.decode(ids) == "line 5 of the "
  said = AppModel(GGUFCheckpoint(g), AppLayout.parse("1")).prefill(ids)
  assert tokenizer.pieces[int(said.argmax())].strip().isalpha()


@pytest.mark.parametrize(
  ("options", "match"),
  [
    (["--mesh", "2x"], "--mesh '2x' is no number of devices\n  fix: --mesh 2, or a mesh as --mesh 2x2"),
    (["--mesh", "pp=2"], "--mesh 'pp=2' has other axes than dp and tp\n  fix: --mesh dp=2,tp=2"),
    (["--dim", "100"], "--dim 100 is no multiple of 2 · 8 heads\n  fix: --dim 256"),
    (["--kv-heads", "3"], "8 heads cannot share 3 kv heads\n  fix: --kv-heads 8"),
    (["--mesh", "8"], "4 kv heads cannot be cut in 8\n  fix: --kv-heads 8"),
    (["--mesh", "3x1"], "--batch 8 cannot be cut in 3\n  fix: --batch 3"),
    (["--vocab", "100"], "--vocab 100 has no room for 256 bytes and 2 marks\n  fix: --vocab 512"),
    (["--layers", "0"], "a size is less than 1\n  fix: sizes from 1 on"),
    (["--vocab", "90000"], "these texts give .* tokens, not 90000\n  fix: more text, or a smaller --vocab"),
  ],
)
def test_mistakes_are_one_message_and_status_2(texts, options, match, capsys):
  assert program.train_command(["--data", str(texts), *options]) == 2
  assert re.search(match, capsys.readouterr().err)
