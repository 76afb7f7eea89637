"""Entry point of the gateway process; `topicsd serve` starts it."""

import sys

if __name__ == "__main__":
    # Both before the modules they are about are imported.
    from shared.io.compiled import use_compiled
    from shared.io.late_modules import lighten_trio
    from shared.io.start_image import start_image

    lighten_trio()
    use_compiled()
    with start_image("gateway"):
        from gateway.process import main

    sys.exit(main(sys.argv))
