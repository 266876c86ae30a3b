"""The tools' client: requests to a server, directly or on AWS, and answers in any of our APIs. `lmi invoke` sends one."""
