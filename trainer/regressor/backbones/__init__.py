"""Language models that read packs or queries, behind one interface."""
