"""Packing of many launches into few sequences: selection, order, arrays, split over processes."""
