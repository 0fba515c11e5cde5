"""The only imports of Ray: the runtime of a cluster and its actors."""
