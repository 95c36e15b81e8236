"""What users run to compare mlirc with eager and Inductor."""
