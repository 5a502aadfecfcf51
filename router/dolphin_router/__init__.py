"""The data plane: what a routing table says, and the decision that it makes for one request."""
