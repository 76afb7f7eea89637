"""The storage engine in one process, next to what the machine allows: `python -m perf.engine`."""
