"""The command line. Each file holds one command: it parses, calls one library function, prints."""
