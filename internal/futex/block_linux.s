// Functions without bodies need a file of assembly beside them.
