"""What is raised where processes do not go together any more."""

from tinygrad.device import DeviceError


class DistributedError(DeviceError):
  """Several processes that run one script cannot go on together."""


class DivergedError(DistributedError):
  """The processes do different things: each one's are named, with its line."""


class LostProcessError(DistributedError):
  """A process has ended, failed, or been stopped, while others wait for it."""
