"""`lmi chat`: a chat in the terminal with a server or with an endpoint on AWS."""
