"""Where discreet meets people: the command line and its demo. Parsing, printing and drawing only."""
