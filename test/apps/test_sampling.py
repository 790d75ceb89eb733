"""Sampling against a slow oracle that sorts and sums plainly, each filter on what the one before it left."""

import copy
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinygrad.apps.sampling import (
  LIKELY,
  Sampler,
  Sampling,
  SamplingError,
  candidates,
  draw,
  drawn_at,
  likeliest,
  penalised,
  reached_at,
  reported,
)

FLOATS = st.floats(-8, 8, width=16)  # few of them, so that some are equal
LOGITS = st.lists(FLOATS, min_size=1, max_size=12)
SETTINGS = st.builds(
  Sampling,
  temperature=st.sampled_from([0.25, 1.0, 3.0]),
  top_k=st.integers(0, 13),
  top_p=st.sampled_from([0.0, 0.1, 0.5, 0.9, 0.999, 1.0]),
  min_p=st.sampled_from([0.0, 0.05, 0.4, 1.0]),
)


def slow_candidates(logits: list[float], s: Sampling) -> dict[int, float]:
  """Token -> probability, unnormalised, as the documentation of each filter says it."""
  z = {i: x / s.temperature for i, x in enumerate(logits)}
  if s.top_k:
    z = {i: x for i, x in z.items() if sum(y > x for y in z.values()) < s.top_k}
  p = {i: math.exp(x) for i, x in z.items()}
  total = sum(p.values())
  kept: dict[int, float] = {}
  for i, q in sorted(p.items(), key=lambda item: (-item[1], item[0])):
    if kept and s.top_p < 1 and sum(kept.values()) >= s.top_p:
      break
    kept[i] = q / total
  most = max(kept.values())
  return {i: q for i, q in kept.items() if q >= s.min_p * most}


@given(logits=LOGITS, s=SETTINGS)
def test_candidates_are_those_of_a_slow_oracle(logits: list[float], s: Sampling):
  tokens, p = candidates(np.array(logits), s)
  want = slow_candidates(logits, s)
  # one that stands exactly at the edge may fall to either side, by the last bit of a sum
  if sorted(tokens) != sorted(want):
    edge = min(want.values()) if len(want) > len(tokens) else float(p.min())
    assert abs(len(tokens) - len(want)) == 1 and edge > 0 and s.top_p < 1
    return
  np.testing.assert_allclose(p / p.sum(), np.array([want[i] for i in tokens]) / sum(want.values()), rtol=1e-9)


def test_the_order_of_the_filters_matters():
  """A filter that saw what comes before it would keep other tokens: temperature changes what top-p and min-p see."""
  logits = np.log(np.array([0.5, 0.3, 0.15, 0.05]))
  assert len(candidates(logits, Sampling(top_p=0.75))[0]) == 2
  assert len(candidates(logits, Sampling(temperature=4, top_p=0.75))[0]) == 3
  assert len(candidates(logits, Sampling(min_p=0.2))[0]) == 3
  assert len(candidates(logits, Sampling(temperature=4, min_p=0.2))[0]) == 4
  # top-p of what top-k left: 0.5 of 0.8 is 0.625
  assert len(candidates(logits, Sampling(top_k=2, top_p=0.6))[0]) == 1
  assert len(candidates(logits, Sampling(top_p=0.6))[0]) == 2


def test_many_tokens_are_sorted_only_where_they_matter():
  logits = np.random.default_rng(0).normal(0, 3, 1500)
  for s in (
    Sampling(top_p=0.9),
    Sampling(top_p=0.9999),
    Sampling(temperature=9, top_p=0.97),
    Sampling(top_p=0.2),
    Sampling(top_k=40, top_p=0.95, min_p=0.05),
    Sampling(min_p=0.1),
  ):
    tokens, p = candidates(logits, s)
    want = slow_candidates(list(logits), s)
    assert sorted(tokens) == sorted(want)
    np.testing.assert_allclose(p / p.sum(), np.array([want[i] for i in tokens]) / sum(want.values()))


def test_the_likeliest_are_those_of_a_whole_sort():
  """Many of them equal, so that the places where sorting stops lie among equals."""
  draw = np.random.default_rng(1)
  for n in (1, 5, 64, 65, 1100, 3000):
    p = np.round(draw.dirichlet(np.full(n, 0.3)), 4) + 1e-6
    order = sorted(range(n), key=lambda i: (-p[i], i))
    ends = np.cumsum([p[i] for i in order])
    for share in (0.0, *draw.random(20) * p.sum(), p.sum() * 2):
      reached = [end >= share for end in ends]
      want = order[: reached.index(True) + 1] if True in reached else order
      assert list(likeliest(p, share)) == want


@pytest.mark.parametrize("s", [Sampling(), Sampling(temperature=0.5), Sampling(top_k=2), Sampling(top_p=0.6)])
def test_tokens_are_drawn_by_their_probabilities(s: Sampling):
  logits = np.log(np.array([0.1, 0.2, 0.7], np.float32))
  want = slow_candidates(list(map(float, logits)), s)
  sampler = Sampler(Sampling(**{f: getattr(s, f) for f in ("temperature", "top_k", "top_p")}, seed=1))
  counts = Counter(sampler(logits).token for _ in range(20000))
  for i in range(3):
    assert counts[i] / 20000 == pytest.approx(want.get(i, 0) / sum(want.values()), abs=0.02)


TEXTS = [
  Sampling(seed=1),
  Sampling(temperature=0, repetition=1.5),
  Sampling(temperature=0.5, seed=2, frequency=1.0),
  Sampling(top_k=3, seed=3),
  Sampling(temperature=2, top_p=0.8, min_p=0.05, seed=4, logprobs=2),
  Sampling(bias=((5, 100.0),), seed=5),
]


def test_several_texts_at_once_draw_what_each_does_alone():
  """Also beside one from which nothing can be drawn; with another's generator or settings the tokens are others."""
  rng = np.random.default_rng(2)
  alone, together = ([Sampler(s, [1, 2]) for s in TEXTS] for _ in range(2))
  masks = [None, None, np.arange(40) % 2 == 0, None, None, None, None]
  wrong = 0
  for _ in range(30):
    logits = rng.normal(0, 2, (7, 40)).astype(np.float32)
    logits[6, 3] = math.nan
    *got, none = draw([*together, Sampler(Sampling())], logits, masks)
    assert got == [sampler(row, mask) for sampler, row, mask in zip(alone, logits, masks)]
    assert isinstance(none, SamplingError)
    wrong += got != [sampler(row, mask) for sampler, row, mask in zip(alone, logits[::-1][1:], masks)]
    together = [copy.deepcopy(sampler) for sampler in alone]
  assert wrong == 30


@pytest.mark.parametrize("share", [0.0, 0.24, 0.25, 0.999, math.nextafter(1, 0)])
def test_a_share_falls_to_what_has_a_part(share: float):
  ends = np.cumsum([0.0, 0.25, 0.0, 0.75, 0.0, 0.0])
  assert reached_at(ends, share) == (1 if share < 0.25 else 3)
  assert reached_at(ends * 3e-300, share * 3e-300) == (1 if share < 0.25 else 3)


def test_tokens_are_looked_up_by_sums_the_likely_ones_first():
  """Against the sums of all in that order; most draws fall to likely ones, some to others."""
  rng, unlikely = np.random.default_rng(6), 0
  for runs in (1, 2, 40):
    p = rng.dirichlet(np.full(runs * 64, 0.1)).astype(np.float32)
    p[rng.random(len(p)) < 0.3] = 0
    p[-5:] = 0
    p /= p.max()
    likely = sorted((i for i in range(len(p)) if p[i] >= LIKELY), key=lambda i: (-p[i], i))
    order = [*likely, *(i for i in range(len(p)) if p[i] < LIKELY)]
    ends = p[order].cumsum(dtype=np.float64)
    for share in (0.0, *rng.random(300), 0.9999, math.nextafter(1, 0)):
      got = drawn_at(p.reshape(runs, 64), share * ends[-1])
      at = order.index(got)
      assert p[got] > 0 and abs(share * ends[-1] - ends[at] + p[got] / 2) <= p[got] / 2 + 1e-6
      unlikely += p[got] < LIKELY
  assert 5 < unlikely < 450


def test_temperature_0_takes_the_likeliest():
  logits = np.array([0.0, 2.0, 1.0], np.float32)
  assert {Sampler(Sampling(temperature=0, seed=i))(logits).token for i in range(20)} == {1}


def test_a_seed_says_what_is_drawn():
  logits = np.zeros(50, np.float32)

  def drawn(seed: int | None) -> list[int]:
    sampler = Sampler(Sampling(seed=seed))
    return [sampler(logits).token for _ in range(20)]

  assert drawn(7) == drawn(7) != drawn(8)
  assert drawn(None) != drawn(None)


@given(logits=LOGITS, seen=st.sets(st.integers(0, 11)), text=st.lists(st.integers(0, 11)), s=st.data())
def test_penalties_are_those_of_a_slow_oracle(logits: list[float], seen: set[int], text: list[int], s: st.DataObject):
  n = len(logits)
  seen, text = {i for i in seen if i < n}, [i for i in text if i < n]
  r = s.draw(st.sampled_from([0.5, 1.0, 1.3]))
  a, b = s.draw(st.sampled_from([-2.0, 0.0, 0.7])), s.draw(st.sampled_from([-1.0, 0.0, 0.2]))
  bias = tuple(s.draw(st.dictionaries(st.integers(0, 14), st.sampled_from([-100.0, 1.0]), max_size=3)).items())
  want = []
  for i, x in enumerate(logits):
    x += sum(change for token, change in bias if token == i)
    if i in seen | set(text):
      x = x / r if x > 0 else x * r
    want.append(x - a * (i in text) - b * text.count(i))
  sampling = Sampling(repetition=r, presence=a, frequency=b, bias=bias)
  got = penalised(np.array(logits), sampling, seen | set(text), Counter(text))
  np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


def test_a_sampler_counts_what_it_has_drawn():
  logits = np.array([3.0, 2.0, 1.0], np.float32)
  draws = Sampler(Sampling(temperature=0, frequency=0.6))
  assert [draws(logits).token for _ in range(6)] == [0, 0, 1, 0, 1, 0]
  once = Sampler(Sampling(temperature=0, presence=1.5))
  assert [once(logits).token for _ in range(4)] == [0, 1, 0, 0]
  repeats = Sampler(Sampling(temperature=0, repetition=2), prompt=[0])
  assert [repeats(logits).token for _ in range(2)] == [1, 0]  # 1.5 < 2, then 1.5 > 1


def test_what_is_not_allowed_is_not_drawn():
  logits = np.array([9.0, 1.0, 2.0], np.float32)
  for t in (0.0, 1.0):
    sampler = Sampler(Sampling(temperature=t, seed=0))
    assert {sampler(logits, np.array([False, True, True])).token for _ in range(50)} <= {1, 2}


def test_log_probabilities_are_the_models_own():
  logits = np.array([1.0, 3.0, 2.0, 2.0], np.float32)
  p = np.log(np.exp(logits) / np.exp(logits).sum())
  got = Sampler(Sampling(temperature=0, logprobs=3, bias=((0, 100.0),)))(logits)
  assert got.token == 0 and got.logprob == pytest.approx(p[0])
  assert [i for i, _ in got.likeliest] == [1, 2, 3]
  assert [x for _, x in got.likeliest] == pytest.approx([p[1], p[2], p[3]])
  assert reported(logits, 1, 0).likeliest == () and reported(logits, 1, None).logprob is None
  assert len(reported(logits, 1, 20).likeliest) == 4


@pytest.mark.parametrize(
  ("settings", "match"),
  [
    ({"temperature": -1}, r"temperature is -1\n  fix: a number from 0 to 100"),
    ({"temperature": math.nan}, "temperature is nan"),
    ({"top_p": 1.5}, "top_p is 1.5"),
    ({"top_k": -1}, "top_k is -1"),
    ({"min_p": 2}, "min_p is 2"),
    ({"repetition": 0}, "repetition is 0"),
    ({"presence": 3}, r"presence is 3\n  fix: a number from -2 to 2"),
    ({"frequency": -2.5}, "frequency is -2.5"),
    ({"seed": -1}, "seed is -1"),
    ({"logprobs": 21}, "logprobs is 21"),
    ({"bias": ((1, 101.0),)}, "bias of token 1 is 101"),
    ({"bias": ((-1, 1.0),)}, "bias of token -1 is 1"),
  ],
)
def test_settings_out_of_range(settings: dict[str, object], match: str):
  with pytest.raises(SamplingError, match=match) as e:
    Sampling(**settings)
  assert e.value.setting in settings


@pytest.mark.parametrize("logits", [[math.nan, 1.0], [-math.inf, -math.inf]])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_from_which_nothing_can_be_drawn(logits: list[float], temperature: float):
  with pytest.raises(SamplingError, match="logits hold NaN, or no token may be drawn"):
    Sampler(Sampling(temperature=temperature))(np.array(logits, np.float32))


def test_candidates_are_those_of_transformers():
  """The order and the filters are Hugging Face's."""
  torch = pytest.importorskip("torch")
  transformers = pytest.importorskip("transformers")
  rng = np.random.default_rng(3)
  for t, k, p, m in ((0.7, 40, 0.95, 0.05), (1.5, 0, 0.8, 0.0), (0.3, 5, 1.0, 0.2), (2.0, 0, 0.9, 0.1)):
    logits = rng.normal(0, 3, 500)
    x = torch.tensor(logits)[None]
    warpers = [transformers.TemperatureLogitsWarper(t)]
    warpers += [transformers.TopKLogitsWarper(k)] if k else []
    warpers += [transformers.TopPLogitsWarper(p)] if p < 1 else []
    warpers += [transformers.MinPLogitsWarper(m)] if m else []
    for warper in warpers:
      x = warper(None, x)
    tokens, q = candidates(logits, Sampling(temperature=t, top_k=k, top_p=p, min_p=m))
    want = x.softmax(-1)[0].numpy()
    assert sorted(tokens) == list(np.flatnonzero(want))
    np.testing.assert_allclose(q / q.sum(), want[tokens], rtol=1e-9)


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-45, 1e-39, 1e-30])
@pytest.mark.parametrize("more", [{}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.1}])
def test_the_smallest_temperatures_take_the_likeliest(temperature: float, more: dict[str, float]):
  """A divisor that float32 has not makes NaN of the likeliest, from which nothing can be drawn."""
  logits = np.array([1.0, -math.inf, 3.0, 2.999, -60.0], np.float32)
  s = Sampler(Sampling(temperature=temperature, seed=1, **more))
  assert [s(logits).token for _ in range(8)] == [2] * 8
