"""How fast models train and predict, and how well."""
