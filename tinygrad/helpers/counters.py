"""Counters of what ran and of the memory in use."""

from typing import ClassVar


class GlobalCounters:
  """What ran since `reset()`: floating-point operations, bytes of memory traffic, seconds (DEBUG>=2), kernels, the most
  bytes in use on each device; and the bytes in use now.

  Examples:
    >>> x = Tensor([1.0, 2.0]).realize()
    >>> GlobalCounters.reset()
    >>> y = (x * 2).realize()
    >>> GlobalCounters.kernel_count
    1
  """

  global_ops: ClassVar[int] = 0
  global_mem: ClassVar[int] = 0
  time_sum_s: ClassVar[float] = 0.0
  kernel_count: ClassVar[int] = 0
  mem_used: ClassVar[int] = 0
  mem_used_per_device: ClassVar[dict[str, int]] = {}  # by the device's canonical name; read it with Device.mem_used
  peak_on: ClassVar[dict[str, int]] = {}  # Device.mem_peak

  @staticmethod
  def reset() -> None:
    GlobalCounters.global_ops = GlobalCounters.global_mem = GlobalCounters.kernel_count = 0
    GlobalCounters.time_sum_s = 0.0
    GlobalCounters.peak_on = dict(GlobalCounters.mem_used_per_device)

  @staticmethod
  def allocated(device: str, nbytes: int) -> None:
    """Notes memory that buffers take on a device, or give back (negative)."""
    used = GlobalCounters.mem_used_per_device[device] = GlobalCounters.mem_used_per_device.get(device, 0) + nbytes
    if used > GlobalCounters.peak_on.get(device, 0):
      GlobalCounters.peak_on[device] = used
