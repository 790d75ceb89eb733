"""What a decision can see of a value: equal for values of equal layers, numbers for what it has to tell apart."""

import gc

from tinygrad import Tensor
from tinygrad.sharding.abstract_values import IndexNumbers, abstract_of

D2 = ("CPU:0", "CPU:1")


def index():
  return Tensor.empty(4, device="CPU:0").uop


def test_equal_chains_have_one_abstract_value():
  def value():
    return Tensor.empty(8, 6).shard(D2, axis=0).realize().reshape(8, 3, 2).uop

  x, y = value(), value()
  assert x is not y and abstract_of(x) is abstract_of(y)


def test_an_index_keeps_its_number_and_no_two_that_live_share_one():
  numbers = IndexNumbers()
  held = [index() for _ in range(5)]
  first = [numbers.of(u) for u in held]
  assert first == [2, 3, 4, 5, 6] == [numbers.of(u) for u in held]


def test_the_number_of_an_index_that_is_gone_is_given_again():
  numbers = IndexNumbers()
  held = [index() for _ in range(5)]
  for u in held:
    numbers.of(u)
  del u, held[1], held[2]  # of the numbers 3 and 5
  gc.collect()
  held += [index() for _ in range(3)]
  assert [numbers.of(u) for u in held] == [2, 4, 6, 3, 5, 7]
