"""Long runs of the fuzz targets."""
