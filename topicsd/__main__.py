"""`python -m topicsd`, the same as `topicsd`."""

from topicsd.cli import main

if __name__ == "__main__":
    main(prog_name="topicsd")
