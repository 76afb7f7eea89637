"""The `topics` command: a client of the HTTP API. It talks to a server only through its port."""
