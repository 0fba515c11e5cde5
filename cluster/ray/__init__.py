"""The runtime of a cluster, with its actors. Only this package and ``trainer`` import Ray."""
