"""One file per subcommand. Each has a `command`, which topicsd/client/cli.py loads when it is asked for."""
