from perf.engine.command import main

main()
