"""Parse OpenCL C with libclang: a plain syntax tree, and abstract values of its expressions."""
