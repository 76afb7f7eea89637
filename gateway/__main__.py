"""Entry point of the gateway process; `topicsd serve` starts it."""

import sys

from gateway.process import main

if __name__ == "__main__":
    sys.exit(main(sys.argv))
