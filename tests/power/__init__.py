"""Power cuts and bad drives below the real storage."""
