"""The command line. Each file contains one command: it parses, calls one library function, prints."""
