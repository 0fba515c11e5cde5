"""The dataset on disk: shards, manifests, epochs, and how they become durable and visible.

Everything goes through ``filesystem.Filesystem``, so that tests can crash it at any point.
"""
