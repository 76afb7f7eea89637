"""`python -m topicsd`, the same as `topicsd`."""

from topicsd.entry import main

if __name__ == "__main__":
    main()
