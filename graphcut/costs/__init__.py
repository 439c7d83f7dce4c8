"""What a node costs: floating-point operations, bytes, caches, and the seconds these take on a device."""
