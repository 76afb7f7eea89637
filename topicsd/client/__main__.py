"""`python -m topicsd.client`, the same as `topics`."""

from topicsd.client.cli import main

if __name__ == "__main__":
    main()
