"""Conversion of launches to tokens.

The prefix is the kernel; the suffix is everything that differs between the kernel's launches.
"""
