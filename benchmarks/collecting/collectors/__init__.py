"""Speed of collecting: LLMPerf, a fresh process per config, kernel_tuner and a plain loop."""
