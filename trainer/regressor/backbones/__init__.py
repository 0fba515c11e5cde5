"""The language models of the regressor: backbones that read packs, and the query reader."""
