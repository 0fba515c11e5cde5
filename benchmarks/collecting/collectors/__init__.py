"""How fast samples are collected: ours beside a fresh process per config, kernel_tuner and a plain loop."""
