"""The places where a dataset may lie, folders and S3, and their locks.

``filesystem`` and ``s3`` write a file that appears whole or not at all. ``create_once`` tests
whether a store never overwrites an existing file.
"""
