"""Running a cascade in this process, within a memory limit."""
