"""Settings of several processes."""

from tinygrad.helpers import ContextVar

SHARED_MEMORY = ContextVar("SHARED_MEMORY", 1, None)  # 0: the processes of a host send each other messages, too
HOSTS = ContextVar("HOSTS", 0, None, 0)  # n: the processes act as if they were on so many hosts
SAME_DATA = ContextVar("SAME_DATA", 256, None, 0)  # of so many copies of host data processes compare what several get
NCCL = ContextVar("NCCL", 1, None)  # 0: what GPUs of several processes exchange goes through the host, by MPI
