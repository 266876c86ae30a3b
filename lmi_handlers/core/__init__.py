"""What every other part speaks of: requests, outputs, sampling parameters, limits, errors. Imports nothing but these."""
