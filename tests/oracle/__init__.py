"""An independent oracle of extents: Oclgrind, a simulator that reports every access out of bounds."""
