"""The dataset on disk: shards, manifests and epochs, and how they become durable and visible.

All access goes through ``filesystem.Filesystem``, so that tests can simulate a crash at any point.
"""
