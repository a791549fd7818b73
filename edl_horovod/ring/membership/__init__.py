"""How a rank becomes a member of rings."""
