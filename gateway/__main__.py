"""Entry point of the gateway process; `topicsd serve` starts it."""

import sys

from shared.io.compiled import use_compiled

if __name__ == "__main__":
    use_compiled()  # before anything that may be compiled is imported

    from gateway.process import main

    sys.exit(main(sys.argv))
