"""Where discreet meets people: the command line, the server with its client, and the demo. Parsing, printing
and drawing only."""
