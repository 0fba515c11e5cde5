"""The truth by hand on the kernels of ``kernels/``, read from their side files."""
