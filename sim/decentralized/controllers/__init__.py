"""Controllers of theta by name; a line in `CONTROLLERS` adds one."""
