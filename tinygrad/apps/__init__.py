"""Programs for users, built on the public API."""


class AppError(ValueError):
  """Something that a program was given cannot be used; the message says what, and a fix."""
