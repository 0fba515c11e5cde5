"""Packing of many launches into few token sequences: which, in what order, on which process."""
