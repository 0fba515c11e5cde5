"""The language-model regressor: backbones, head, weights. A door to ``torch`` and ``transformers``."""
