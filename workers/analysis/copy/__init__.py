"""The instrumented copy of a kernel."""
