"""Entry point of the gateway process; `topicsd serve` starts it."""

import sys

if __name__ == "__main__":
    from shared.io.late_modules import load_openssl_late

    load_openssl_late()
    from gateway.process import main

    sys.exit(main(sys.argv))
