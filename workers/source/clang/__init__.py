"""libclang: the door to it, its syntax tree, and values of expressions."""
