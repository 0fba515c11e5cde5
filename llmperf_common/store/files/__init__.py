"""Where a dataset lies: folders and S3, and locks there."""
