"""Where the router's configuration and table come from, and how a change of them is noticed."""
