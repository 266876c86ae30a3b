"""`lmi conform`: whether a server speaks the APIs that it claims to speak."""
