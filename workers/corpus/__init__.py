"""Reading kernels from files, folders, archives, git repositories and Parquet."""
