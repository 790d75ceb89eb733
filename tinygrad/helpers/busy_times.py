"""Which of many alike things are free for a while."""


class BusyTimes:
  """When numbered things are taken: a segment tree over times. Of each node, as bits, those that are taken for all of
  its times, and for some. A question or a change takes as many steps as the number of times has bits."""

  def __init__(self, times: int) -> None:
    self.leaves = 1 << times.bit_length()
    self.all, self.some = [0] * (2 * self.leaves), [0] * (2 * self.leaves)
    self.count = 0

  def take(self, first: int, last: int) -> int:
    """Takes the last thing that is free from time `first` to `last`, or else one more, and returns its number."""
    parts, above = self.parts(first, last), self.above(first, last)
    taken = 0
    for i in above:
      taken |= self.all[i]
    for i in parts:
      taken |= self.some[i]
    free = ~taken & ((1 << self.count) - 1)
    n = free.bit_length() - 1 if free else self.count
    self.count = max(self.count, n + 1)
    for i in parts:
      self.all[i] |= 1 << n
    for i in (*parts, *above):
      self.some[i] |= 1 << n
    return n

  def parts(self, first: int, last: int) -> list[int]:
    """The fewest nodes whose times are these."""
    found, low, high = list[int](), first + self.leaves, last + self.leaves + 1
    while low < high:
      if low & 1:
        found.append(low)
      if high & 1:
        found.append(high - 1)
      low, high = (low + 1) // 2, high // 2
    return found

  def above(self, first: int, last: int) -> set[int]:
    """The nodes whose times include one of these ends."""
    return {(leaf + self.leaves) >> k for leaf in (first, last) for k in range(self.leaves.bit_length())}
