"""Contains the user interfaces of discreet: the command line, the server with its client, and the demo.

They parse, print and draw only; every privacy decision is made below, in `session` and `curator`."""
