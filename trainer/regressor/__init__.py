"""The language-model regressor: backbones, head, weights. May import torch and transformers."""
