"""``python -m llmperf.reference FOLDER``."""

import sys

from llmperf.exits import run_guarded
from llmperf.reference.pages import main

run_guarded(lambda: main(sys.argv[1:]))
