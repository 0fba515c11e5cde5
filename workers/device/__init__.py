"""Devices behind one interface: ``interface.py`` says what a device can do, each other file is one door.

pyopencl is imported in ``opencl*.py`` only, pycuda (later) in ``cuda/driver.py`` only.
"""
