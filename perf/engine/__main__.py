from shared.io.compiled import use_compiled

use_compiled()  # as in a worker, before anything that may be compiled is imported

from perf.engine.command import main  # noqa: E402

main()
