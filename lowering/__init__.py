"""From the vector dialect to object code, and the description of the target CPU."""
