"""A server with OpenAI's HTTP interface over one engine (docs/serve.md)."""
