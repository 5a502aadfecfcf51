"""The admin port: what operators of the router and the search ask of it."""
