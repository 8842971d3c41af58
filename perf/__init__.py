"""Measuring Twintape, its peers and the physical limit in one run."""
