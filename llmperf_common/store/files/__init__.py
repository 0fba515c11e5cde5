"""The places where a dataset may lie, folders and S3, and their locks."""
