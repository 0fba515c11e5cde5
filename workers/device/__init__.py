"""Devices behind one interface: ``interface.py`` says what a device does; other modules do it.

In this package only ``opencl/`` imports pyopencl, and only ``cuda/driver.py`` imports pycuda.
"""
