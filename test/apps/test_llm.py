"""The program: both ways to start it, prompts from everywhere, sampling, statistics, mistakes, Ctrl-C."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_llama import CASES, Tiny

from extra.write_gguf import write_gguf
from tinygrad import Context
from tinygrad.apps import llm
from tinygrad.apps.checkpoint import GGUFCheckpoint
from tinygrad.apps.config import Config
from tinygrad.nn.gguf import GGUF

ROOT = Path(__file__).parents[2]
TINY = Tiny("tiny", kind="Q8_0", dim=64, heads=4, kv_heads=4, head_dim=16, ffn=64, layers=2, vocab=288, context=256)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
  return TINY.write(tmp_path_factory.mktemp("llm") / "tiny.gguf")


def run(*args: str, stdin: str = "", cwd: Path = ROOT, module: bool = False) -> subprocess.CompletedProcess[str]:
  start = ["-m", "tinygrad.apps.llm"] if module else [str(ROOT / "tinygrad" / "apps" / "llm.py")]
  env = os.environ | {"PYTHONPATH": str(ROOT)} if module else {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
  return subprocess.run([sys.executable, *start, *args], input=stdin, capture_output=True, text=True, cwd=cwd, env=env)


def say(model: Path, *args: str, stdin: str = "", capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
  status = llm.main(["--model", str(model), *args])
  out = capsys.readouterr()
  return status, out.out, out.err


def test_as_a_script_and_as_a_module_from_anywhere(model: Path, tmp_path: Path):
  args = ("--model", str(model), "--temperature", "0", "--max-tokens", "6")
  outs = [
    run(*args, "--prompt", "hello", cwd=tmp_path),
    run(*args, "--prompt", "hello", module=True, cwd=tmp_path),
    run(*args, stdin="hello\n"),
    run(*args, "--shard", "2", stdin="hello\n"),
  ]
  for r in outs:
    assert r.returncode == 0, r.stderr
    assert r.stdout == outs[0].stdout and r.stdout.startswith("hello") and len(r.stdout) > 6
  assert "tokens/s" in outs[0].stderr and "on 1" in outs[0].stderr
  assert "collectives of a step: " in outs[3].stderr


@pytest.mark.needs("CL")
def test_two_opencl_devices_say_what_one_of_the_cpu_says(model: Path, capsys: pytest.CaptureFixture[str]):
  args = ("--prompt", "hello world", "--temperature", "0", "--max-tokens", "20")
  status, want, _ = say(model, *args, capsys=capsys)
  with Context(DEV="CL"):
    other, got, told = say(model, *args, "--shard", "2", capsys=capsys)
  assert status == other == 0 and got == want and len(want) > len("hello world") + 20
  assert "on 2" in told and "all_reduce" in told


def test_folder_of_the_app_hides_no_module(tmp_path: Path):
  code = (
    f"import runpy, sys; sys.argv = ['llm.py', '--help']; sys.path.insert(0, {str(ROOT / 'tinygrad' / 'apps')!r})\n"
  )
  code += f"try: runpy.run_path({str(ROOT / 'tinygrad' / 'apps' / 'llm.py')!r}, run_name='__main__')\n"
  code += "except SystemExit: pass\nimport gguf, tokenizers; print(gguf.__file__, tokenizers.__file__)"
  r = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
  assert r.returncode == 0, r.stderr
  assert str(ROOT / "tinygrad") not in r.stdout.splitlines()[-1]


def test_help_has_examples():
  r = run("--help")
  assert r.returncode == 0 and "examples:" in r.stdout and "--shard 2x2" in r.stdout and r.stderr == ""


def test_same_seed_same_text(model: Path, capsys: pytest.CaptureFixture[str]):
  def text(*args: str) -> str:
    return say(model, "--prompt", "hello", "--max-tokens", "12", *args, capsys=capsys)[1]

  assert text("--seed", "1") == text("--seed", "1") != text("--seed", "2")
  assert text("--temperature", "0", "--seed", "1") == text("--temperature", "0", "--seed", "2")


def test_options_of_a_text(model: Path, capsys: pytest.CaptureFixture[str]):
  def text(*args: str) -> str:
    return say(model, "--prompt", "hello", "--max-tokens", "12", "--temperature", "3", *args, capsys=capsys)[1]

  plain = text()
  greedy = say(model, "--prompt", "hello", "--max-tokens", "12", "--temperature", "0", capsys=capsys)[1]
  assert text("--top-k", "1") == text("--top-p", "0") == text("--min-p", "1") == greedy != plain
  assert text("--stop", plain[7:9]) == plain[:7] + "\n"
  assert len({plain, text("--repetition-penalty", "9"), text("--presence-penalty", "2"), text("--seed", "1")}) > 2


def test_statistics(model: Path, capsys: pytest.CaptureFixture[str]):
  status, out, err = say(model, "--prompt", "hello world", "--max-tokens", "5", "--shard", "2", capsys=capsys)
  assert status == 0
  assert "2 tokens read in " in err and "4 decoded at " in err and "(5" in err and "%) on 2" in err


def test_a_text_that_fills_the_context_says_so(model: Path, capsys: pytest.CaptureFixture[str]):
  asked = ("--prompt", "hello world", "--temperature", "0", "--ctx", "8", "--max-tokens")
  said = "the context of 8 tokens is full: --ctx has more, up to the model's own length\n"
  assert said in say(model, *asked, "50", capsys=capsys)[2] and said not in say(model, *asked, "3", capsys=capsys)[2]


def test_devices_by_name_and_a_mesh_by_its_axes(model: Path, capsys: pytest.CaptureFixture[str]):
  args = ("--prompt", "hello world", "--max-tokens", "5", "--temperature", "0")
  _, want, _ = say(model, *args, capsys=capsys)
  for where in (("--devices", "CPU:2,CPU:5"), ("--mesh", "dp=2,tp=2")):
    status, got, err = say(model, *args, *where, capsys=capsys)
    assert status == 0 and got == want and "is kept by" not in err


@pytest.mark.parametrize(("shard", "copies"), [("3", 3), ("8", 2)])
def test_devices_that_share_kv_heads_are_told(shard: str, copies: int, model: Path, capsys: pytest.CaptureFixture[str]):
  args = ("--prompt", "hello world", "--max-tokens", "5", "--temperature", "0")
  _, want, _ = say(model, *args, capsys=capsys)
  status, got, err = say(model, *args, "--shard", shard, capsys=capsys)
  assert status == 0 and got == want
  assert f"4 kv heads on {shard} devices: each is kept by {copies}\n" in err


def test_what_a_step_sends_is_explained(model: Path, capsys: pytest.CaptureFixture[str]):
  status, out, _ = say(model, "--shard", "2", "--explain", capsys=capsys)
  assert status == 0 and out.count("all_reduce") == 5 and "reduce over a cut dim is partial" in out
  moves = out[out.index("\nmove ") :].split("\nall_reduce")[1:]
  assert all("constrain(P(" in row and " in model.py:" in row and "the user placed" not in out for row in moves)
  values = out[: out.index("\nmove ")].split("\nblk.*.")
  names = "token_embd", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"
  assert {text.split()[0] for text in values if "constrain(P(None, None, 'tp')) in model.py:" in text} == {
    f"{name}.weight" for name in names
  }
  assert say(model, "--explain", capsys=capsys)[1] == "nothing moves\n"


def test_no_model_in_the_package(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path):
  monkeypatch.setattr(llm, "EMBEDDED", tmp_path / "model.gguf")
  assert llm.main(["--prompt", "x"]) == 2
  err = capsys.readouterr().err
  assert "this package holds no model" in err and "python -m tinygrad.apps.train makes one" in err


@pytest.mark.parametrize(
  ("args", "match"),
  [
    (["--shard", "3x"], "--shard '3x' is no number of devices"),
    (["--devices", "CPU:0,CPU:0"], "--devices 'CPU:0,CPU:0' names one twice"),
    (["--shard", "4", "--devices", "CPU:0,CPU:1"], "are 2, and the mesh has 4"),
    (["--devices", "XPU:0,XPU:1"], "XPU"),
    (["--chat"], "has no chat template"),
    (["--prompt", "hello" * 200, "--ctx", "16"], "do not fit into the context of 16"),
    (["--top-p", "2"], "top_p is 2.0"),
  ],
)
def test_mistakes_are_one_message_and_status_2(
  model: Path, args: list[str], match: str, capsys: pytest.CaptureFixture[str]
):
  status, _, err = say(model, "--prompt", "x", *args, capsys=capsys)
  assert status == 2 and err.startswith("error: ") and match in err and "\n  fix: " in err and "Traceback" not in err


def test_files_that_are_not_there_or_broken(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
  for missing in (tmp_path / "none.gguf", "", "~no-such-user/x.gguf"):
    status, _, err = say(missing, "--prompt", "x", capsys=capsys)
    assert status == 2 and f"--model '{missing}': there is no such file or folder\n  fix: --model with one" in err
  (tmp_path / "cut.gguf").write_bytes(model.read_bytes()[:-100])
  status, _, err = say(tmp_path / "cut.gguf", "--prompt", "x", capsys=capsys)
  assert status == 2 and "cut.gguf" in err and "fix: the file is damaged" in err


def test_an_empty_prompt_without_bos(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
  metadata = {k: v for k, v in TINY.metadata().items() if k != "tokenizer.ggml.bos_token_id"}
  write_gguf(tmp_path / "b.gguf", metadata, TINY.tensors(), TINY.types())
  status, _, err = say(tmp_path / "b.gguf", "--prompt", "", capsys=capsys)
  assert status == 2 and err == "error: the prompt is empty\n  fix: --prompt 'some text'\n"


def test_a_reader_that_has_enough_ends_the_text_quietly(model: Path):
  big = replace(CASES["q8_0_gqa_tied"], context=4000).write(model.parent / "long.gguf")
  script = [sys.executable, str(ROOT / "tinygrad" / "apps" / "llm.py"), "--model", str(big), "--prompt", "hello"]
  p = subprocess.Popen([*script, "--max-tokens", "3000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
  assert p.stdout is not None and p.stderr is not None
  assert p.stdout.read(10).startswith(b"hello")
  p.stdout.close()
  said = p.stderr.read().decode()
  assert p.wait(60) == 141 and "rror" not in said and "Traceback" not in said


@pytest.mark.parametrize(
  ("closed", "args", "status", "match"),
  [
    ("<&-", [], 0, "1 tokens read"),
    (">&-", ["--prompt", "hello"], 0, "1 tokens read"),
    (">/dev/full", ["--prompt", "hello"], 2, "No space left on device"),
  ],
)
def test_streams_that_are_closed_or_full(closed: str, args: list[str], status: int, match: str, model: Path):
  command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, str(ROOT / "tinygrad" / "apps" / "llm.py")]
  r = subprocess.run([*command, "--model", model, *args, "--max-tokens", "3"], stderr=subprocess.PIPE, text=True)
  assert r.returncode == status and match in r.stderr and "Traceback" not in r.stderr


def test_text_that_is_no_utf_8(model: Path):
  command = [sys.executable, str(ROOT / "tinygrad" / "apps" / "llm.py"), "--model", str(model)]
  r = subprocess.run(command, input=b"caf\xe9", capture_output=True)
  said = r.stderr.decode()
  assert r.returncode == 2 and "the text is no UTF-8: '\\udce9' at character 3\n  fix: convert it first" in said


def test_output_that_is_not_unicode(model: Path):
  command = [sys.executable, str(ROOT / "tinygrad" / "apps" / "llm.py"), "--model", str(model), "--prompt", "größe"]
  env = os.environ | {"PYTHONIOENCODING": "ascii"}
  r = subprocess.run([*command, "--max-tokens", "2"], capture_output=True, env=env)
  assert r.returncode == 0 and r.stdout.startswith(b"gr??e"), r.stderr


def test_no_memory(model: Path, capsys: pytest.CaptureFixture[str]):
  status, _, err = say(model, "--prompt", "x", "--slots", "90000000", capsys=capsys)
  assert status == 2 and "no memory for a buffer of" in err and "\n  fix: a smaller --ctx or --slots" in err


def test_a_prompt_that_is_refused_is_not_shown(model: Path, capsys: pytest.CaptureFixture[str]):
  status, out, err = say(model, "--prompt", "hello" * 20, "--ctx", "4", capsys=capsys)
  assert status == 2 and out == "" and "do not fit into the context of 4" in err


def test_an_unknown_device(model: Path):
  env = os.environ | {"DEV": "NONSENSE"}
  script = [sys.executable, str(ROOT / "tinygrad" / "apps" / "llm.py"), "--model", str(model), "--prompt", "x"]
  r = subprocess.run(script, capture_output=True, text=True, env=env)
  assert r.returncode == 2 and "unknown device 'NONSENSE'" in r.stderr and "Traceback" not in r.stderr
  assert "layout.py" not in r.stderr


@pytest.mark.parametrize(
  "args",
  [
    ["--temperature", "-1"],
    ["--max-tokens", "0"],
    ["--ctx", "0"],
    ["--slots", "0"],
    ["--nonsense"],
    ["--port", "65536"],
    ["--port", "-1"],
    ["--serve", "--chat"],
    ["--serve", "--prompt", "x"],
    ["--api-key", ""],
    ["--api-key", "a\nb"],
    ["--api-key", " secret"],
  ],
)
def test_options_out_of_range(args: list[str], capsys: pytest.CaptureFixture[str]):
  with pytest.raises(SystemExit) as e:
    llm.main(args)
  err = capsys.readouterr().err
  assert e.value.code == 2 and "usage:" in err and args[0] in err.splitlines()[-1]


def test_an_empty_prompt_begins_with_bos(
  model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
  monkeypatch.setattr(sys, "stdin", io.StringIO(""))
  status, out, err = say(model, "--max-tokens", "3", capsys=capsys)
  assert status == 0 and "1 tokens read" in err


def test_chat(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
  template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
  write_gguf(tmp_path / "c.gguf", TINY.metadata() | {"tokenizer.chat_template": template}, TINY.tensors(), TINY.types())
  status, out, err = say(tmp_path / "c.gguf", "--chat", "--prompt", "hello", "--max-tokens", "4", capsys=capsys)
  # <user>hello<assistant> is 6 + 1 + 11 tokens, and the prompt is not repeated
  assert status == 0 and "18 tokens read" in err and not out.startswith("hello")


def test_ctrl_c_ends_the_text_with_the_statistics(model: Path, tmp_path: Path):
  big = replace(CASES["q8_0_gqa_tied"], context=4000).write(tmp_path / "big.gguf")
  script = [sys.executable, str(ROOT / "tinygrad" / "apps" / "llm.py"), "--model", str(big), "--prompt", "hello"]
  script += ["--max-tokens", "100000", "--temperature", "0"]  # this text goes on to the end of the context
  p = subprocess.Popen(script, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
  assert p.stdout is not None
  seen = p.stdout.read(8)  # the prompt and the first of the text
  time.sleep(0.05)
  p.send_signal(signal.SIGINT)
  out, err = p.communicate(timeout=60)
  assert p.returncode == 130, err
  assert seen.startswith("hello") and "tokens read" in err and "Traceback" not in err


def test_ctrl_c_beside_the_statistics_is_no_traceback(
  model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
  """The text may have ended just now."""
  statistics = llm.statistics
  monkeypatch.setattr(llm, "statistics", lambda *args: signal.raise_signal(signal.SIGINT) or statistics(*args))
  status, out, err = say(model, "--prompt", "hello", "--max-tokens", "3", capsys=capsys)
  assert status == 130 and "tokens read" in err


def test_ctrl_c_while_modules_are_loaded_is_no_traceback():
  """It comes as the script imports `tinygrad.apps.chat`."""
  script = f"""
import builtins, os, runpy, signal, sys
load = builtins.__import__
def interrupted(name, *rest):
  if name == "tinygrad.apps.chat":
    os.kill(os.getpid(), signal.SIGINT)
  return load(name, *rest)
builtins.__import__, sys.argv = interrupted, ["llm.py", "--help"]
runpy.run_path({str(ROOT / "tinygrad" / "apps" / "llm.py")!r}, run_name="__main__")
"""
  r = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
  assert (r.returncode, r.stdout, r.stderr) == (-signal.SIGINT, "", "")


def test_more_context_than_the_model_was_made_for_is_said(model: Path, capsys: pytest.CaptureFixture[str]):
  said = "--ctx 1000: this model was made for 256 tokens, which it has\n"
  asked = ("--prompt", "hello", "--temperature", "0", "--max-tokens", "2", "--ctx")
  more, most = say(model, *asked, "1000", capsys=capsys), say(model, *asked, "256", capsys=capsys)
  assert more[:2] == most[:2] and more[0] == 0
  assert said in more[2] and "--ctx" not in most[2]


@pytest.mark.parametrize(("context", "slots"), [(256, 16), (1 << 18, 8), (1 << 20, 4)])
def test_a_server_has_as_many_slots_as_their_caches_are_small(model: Path, context: int, slots: int):
  """Two layers of four heads of 16, keys and values in float16: 512 bytes a token."""
  c = replace(Config.read(GGUFCheckpoint(GGUF(model))), context=context)
  assert llm.default_slots(c) == slots


def test_the_name_of_a_file_that_is_no_utf_8_can_be_told(model: Path, tmp_path: Path):
  file = tmp_path / "mod\udce8le.gguf"  # a byte of Latin-1
  file.write_bytes(model.read_bytes())
  args = llm.arguments().parse_args(["--model", str(file)])
  llm.load_model(args)
  assert args.name == "mod\ufffdle"
