"""Charts and tables as SVG and HTML."""
