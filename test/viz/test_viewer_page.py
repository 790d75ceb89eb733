"""The page, in a real browser: what one clicks, finds, folds and points at."""

from __future__ import annotations

import json

import pytest
from chromium import chromium
from recorded import run

from extra.viewer.frames import recording as large
from tinygrad import Tensor
from tinygrad.sharding import explain, visualize
from tinygrad.viz import page as pages

GRAPH = "viewer.view('graph')"


@pytest.fixture(scope="module")
def browser():
  with chromium() as found:
    yield found


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
  folder = tmp_path_factory.mktemp("viz")
  ended = run(folder)
  assert ended.returncode == 0, ended.stderr
  return folder / "viz.html"


def opened(browser, file):
  """A page, and what went wrong in it: errors, and requests for anything but the file."""
  page = browser.new_page(viewport={"width": 1500, "height": 900})
  problems: list[str] = []
  page.on("pageerror", lambda e: problems.append(str(e)))
  page.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
  page.on("request", lambda r: problems.append(r.url) if not r.url.startswith(("file:", "blob:", "data:")) else None)
  page.goto(f"file://{file}")
  page.wait_for_function("window.viewer")
  return page, problems


@pytest.fixture
def shown(browser, recording):
  page, problems = opened(browser, recording)
  yield page
  assert problems == []
  page.close()


def painted(page):
  """After what is drawn anew has been drawn: the second of two frames begins."""
  page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def tab(page, name):
  page.click(f"button[data-tab={name}]")
  page.wait_for_selector(f".view.{name}")
  if name == "graph":  # of the step, whichever program has taken the most time
    largest = "viewer.recording.plans.reduce((a, b) => b.items.length > a.items.length ? b : a).number"
    page.evaluate(f"{GRAPH}.show({largest}, {GRAPH}.stageName)")


def test_the_overview_answers_the_three_questions(shown):
  cards = {name: shown.inner_text(f".card.{name}") for name in ("moves", "slow", "holds", "devices")}
  assert "train.py:" in cards["moves"] and "data" in cards["moves"] and "partial" in cards["moves"]
  assert "train.py:" in cards["slow"] and "%" in cards["slow"]
  assert "train.py:" in cards["holds"] and "CPU" in cards["holds"]
  assert "CPU:3" in cards["devices"]
  shown.click(".card.moves tbody tr >> nth=0")
  shown.wait_for_selector("aside .code .here")
  assert "each device receives" in shown.inner_text("aside")
  tab(shown, "overview")
  shown.click(".card.slow tbody tr >> nth=0")
  assert "define" in shown.inner_text(".one details.source pre")
  tab(shown, "overview")
  shown.click(".card.holds tbody tr >> nth=0")
  assert "buffers" in shown.inner_text("aside h3 >> nth=0")


def test_every_stage_is_drawn_and_coloured(shown):
  tab(shown, "graph")
  drawn = {}
  for stage in ("global", "placed", "local", "kernels"):
    shown.click(f"button[data-stage={stage}]")
    painted(shown)
    drawn[stage] = shown.evaluate(
      f"""() => {{ const g = {GRAPH}, c = g.surface.canvas;
        const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data, seen = new Set();
        for (let i = 0; i < d.length; i += 4) if (d[i + 3]) seen.add(d[i] << 16 | d[i + 1] << 8 | d[i + 2]);
        const used = new Set(g.boxes.map(b => b.color)).size;
        return {{ boxes: g.boxes.length, edges: g.thick.length, colors: seen.size, used }}; }}"""
    )
  assert all(d["boxes"] > 5 and d["colors"] > 5 for d in drawn.values()), drawn
  assert drawn["global"]["edges"] == 0 and drawn["placed"]["edges"] > 0 and drawn["local"]["edges"] > 0
  assert drawn["placed"]["used"] > 2, "a colour for each placement"


def test_modules_fold_and_unfold(shown):
  tab(shown, "graph")
  shown.click("button.fold-all")
  few = shown.evaluate(f"{GRAPH}.boxes.length")
  shown.click("button.open-all")
  many = shown.evaluate(f"{GRAPH}.boxes.length")
  assert few < 8 < many
  shown.click("button.fold-all")
  keys = shown.evaluate(f"{GRAPH}.boxes.filter(b => b.group).map(b => b.group.key)")
  key = max(keys, key=len)
  x, y = shown.evaluate(f"{GRAPH}.pointOf({GRAPH}.boxes.find(b => b.group?.key === {json.dumps(key)}).members[0])")
  shown.mouse.dblclick(x, y)
  assert shown.evaluate(f"{GRAPH}.folding.open.has({json.dumps(key)})")
  assert shown.evaluate(f"{GRAPH}.boxes.length") > few
  shown.click(f".module[data-key='{key}']")
  assert not shown.evaluate(f"{GRAPH}.folding.open.has({json.dumps(key)})")


def test_search_finds_what_is_folded_away(shown):
  tab(shown, "graph")
  shown.click("button.fold-all")
  shown.fill(".view.graph .search", "blocks.1 reduce")
  found = shown.evaluate(f"{GRAPH}.found.length")
  assert found > 0 and f"{found} found" in shown.inner_text("aside h3")
  shown.press(".view.graph .search", "Enter")
  selected = shown.evaluate(f"{GRAPH}.selected.node")
  assert selected == shown.evaluate(f"{GRAPH}.found[0]")
  assert "blocks.1" in shown.inner_text("aside dl >> nth=0")
  assert "train.py" in shown.inner_text("aside .code .file")
  shown.fill(".view.graph .search", "no such thing")
  assert "0 found" in shown.inner_text("aside h3")


def test_a_move_tells_its_bytes_and_its_reason_where_one_points(shown):
  tab(shown, "graph")
  number = shown.evaluate(f"{GRAPH}.plan.moves.reduce((a, m, i, all) => m.wire > all[a].wire ? i : a, 0)")
  shown.evaluate(f"{GRAPH}.focusMove({GRAPH}.plan.number, {number})")
  painted(shown)
  x, y = shown.evaluate(f"{GRAPH}.pointOfMove({number})")
  shown.mouse.move(x, y + 1)
  said = shown.inner_text(".tip")
  move = shown.evaluate(f"{GRAPH}.plan.moves[{number}]")
  assert move["kind"] in said and move["why"] in said and "train.py:" in said and "B" in said
  shown.mouse.move(5, 5)
  assert not shown.is_visible(".tip")


def test_a_kernel_shows_schedule_source_and_roofline(shown):
  tab(shown, "kernels")
  shown.fill(".view.kernels .search", "train.py")
  rows = shown.locator(".kernels table tbody tr")
  assert rows.count() > 0
  rows.nth(0).click()
  number = shown.evaluate("viewer.recording.kernels.find(k => k.ops && k.runs && k.steps[0]?.length).number")
  shown.evaluate(f"viewer.view('kernels').open({number})")  # whichever is the slowest
  text = shown.inner_text(".one")
  assert "schedule" in text and "nest 0" in text and "operations" in text
  assert shown.locator(".one svg.roof circle.this").count() == 1
  shown.click(".one button.to-graph")
  assert shown.evaluate(f"{GRAPH}.stageName") == "kernels"
  assert "its schedule and source" in shown.inner_text("aside")


LABELS = """() => { const g = viewer.view('graph'), l = g.labels, covered = [];
  const meet = (a, b) => Math.abs(a.x - b.x) < (a.w + b.w) / 2 && Math.abs(a.y - b.y) < 16;
  for (let i = 0; i < l.length; i++) for (let j = 0; j < i; j++) if (meet(l[i], l[j])) covered.push([l[j], l[i]]);
  return { covered, texts: l.map(x => x.text) }; }"""


def test_labels_of_moves_do_not_cover_one_another(shown):
  tab(shown, "graph")
  for button in ("fold-all", "open-all"):
    shown.click(f"button.{button}")
    shown.evaluate(f"{GRAPH}.center({GRAPH}.right / 2, {GRAPH}.bottom / 2, 0.45)")
    painted(shown)
    said = shown.evaluate(LABELS)
    assert said["texts"] and said["covered"] == []
  # several moves of one place: the one that is chosen is told, and where none is, the one of the most bytes
  told = []
  for chosen in ("null", "m"):
    shown.evaluate(f"""() => {{ const g = {GRAPH}, m = g.one ??= g.thick.find(e => e.points.length === 2);
      g.thick = [m, {{ ...m, bytes: 7e9, moves: [0, 0] }}, {{ ...m, bytes: 8e9, moves: [0, 0] }}];
      g.selected = {chosen}; g.center(...m.points[0], 0.9); }}""")
    painted(shown)
    told.append(shown.evaluate(LABELS))
  largest, chosen = told
  assert largest == {"covered": [], "texts": ["2 moves 8.0 GB"]}
  assert chosen["covered"] == [] and len(chosen["texts"]) == 1 and "GB" not in chosen["texts"][0]


def test_what_is_above_the_roof_says_why(shown):
  tab(shown, "kernels")
  shown.evaluate("() => { for (const k of viewer.recording.kernels) k.share = 0.5; viewer.view('kernels').list(); }")
  assert "> 100%" not in shown.inner_text(".view.kernels .list")
  shown.evaluate("""() => { const k = viewer.recording.slowest[0]; k.share = 1.44;
    viewer.view('kernels').list(); viewer.view('kernels').open(k.number); }""")
  listed, one = shown.inner_text(".view.kernels .list"), shown.inner_text(".one")
  assert "> 100%" in listed and "values in caches" in listed and "144% of what the machine" in one
  assert "values in caches" in one


def test_the_timeline_shows_what_ran_on_each_device(shown):
  tab(shown, "timeline")
  view = "viewer.view('timeline')"
  assert shown.evaluate(f"{view}.lanes.filter(l => !l.track.python).length") >= 4
  assert "CPU:3" in shown.inner_text("aside .overlap")
  place = """() => { const t = viewer.view('timeline'), lane = t.lanes[1], r = t.surface.canvas.getBoundingClientRect();
    const e = lane.track.events.find(e => e[3] >= 0 && e[2] > 0);
    t.look(e[1] - e[2], e[1] + 2 * e[2]);
    t.surface.now();
    return [r.left + t.x(e[1] + e[2] / 2), r.top + lane.y + 8]; }"""
  painted(shown)  # the table beside it takes room
  x, y = shown.evaluate(place)
  shown.mouse.move(x, y)
  assert "s" in shown.inner_text(".tip b") and "CPU:1" in shown.inner_text(".tip")
  shown.mouse.click(x, y)
  assert "takes" in shown.inner_text("aside")
  wide = shown.evaluate(f"{view}.domain[1] - {view}.domain[0]")
  shown.mouse.wheel(0, -400)
  shown.wait_for_function(f"{view}.domain[1] - {view}.domain[0] < {wide}", timeout=10_000)


def test_memory_shows_who_holds_it_at_the_peak(shown):
  tab(shown, "memory")
  peak = shown.evaluate("viewer.view('memory').curve.peak")
  rows = shown.evaluate("viewer.recording.alive(viewer.view('memory').curve.rows, viewer.view('memory').curve.at)")
  assert sum(r[1] for r in rows) == peak > 0, "what is alive at the peak is all of it"
  assert "at the peak" in shown.inner_text(".list h3") and "train.py:" in shown.inner_text(".holders")
  shown.click(".holders tbody tr >> nth=0")
  assert "buffers" in shown.inner_text("aside h3 >> nth=0")
  value = shown.locator(".view.memory .what option").last.get_attribute("value")
  shown.select_option(".view.memory .what", value)
  assert "the peak, at kernel" in shown.inner_text(".list h3")


def test_screenshots_are_of_something(shown):
  for name in ("overview", "graph", "kernels", "timeline", "memory"):
    tab(shown, name)
    painted(shown)
    assert len(shown.screenshot()) > 20_000, name


def test_the_recording_can_be_saved(shown, tmp_path):
  with shown.expect_download() as download:
    shown.click("button.save")
  download.value.save_as(tmp_path / "saved.json")
  assert pages.read_recording(tmp_path / "saved.json")["program"] == "train.py"


def test_parts_are_pages_too(browser, tmp_path):
  a = Tensor.ones(64, 256).contiguous().shard(("CPU", "CPU:1"), axis=1)
  b = Tensor.ones(256, 32).contiguous().shard(("CPU", "CPU:1"), axis=0)
  for name, html in (("explain", explain(a @ b).html()), ("visualize", visualize(a @ b, graph=True).html())):
    (tmp_path / f"{name}.html").write_text(html)
    page, problems = opened(browser, tmp_path / f"{name}.html")
    tab(page, "graph")
    assert page.evaluate(f"{GRAPH}.thick.length") == 1 and problems == []
    assert page.evaluate(f"{GRAPH}.plan.moves[0].kind") == "all_reduce"
    page.close()


def test_a_graph_of_30000_nodes_is_drawn_whole(browser, tmp_path):
  """Each box once, at a place of its own (extra/viewer/frames.py measures how fast it moves)."""
  (tmp_path / "large.html").write_text(pages.page_of(large(300, 100), "graph"))
  page, problems = opened(browser, tmp_path / "large.html")
  assert page.evaluate(f"{GRAPH}.boxes.length") < 200, "folded at first"
  page.click("button.open-all")
  assert page.evaluate(f"{GRAPH}.boxes.length") == 30_000
  apart = f"""() => {{ const g = {GRAPH};
    return g.rows.every(row => {{ const xs = row.map(i => g.boxes[i]).sort((a, b) => a.x - b.x);
      return xs.every((b, k) => !k || b.x - b.width / 2 >= xs[k - 1].x + xs[k - 1].width / 2 - 0.01); }})
      && g.boxes.every((b, i) => g.folding.feeds[b.node].every(([s]) => g.boxes[g.box[s]].y < b.y)); }}"""
  assert page.evaluate(apart), "no two overlap, and readers are below what they read"
  assert problems == []
  page.close()
