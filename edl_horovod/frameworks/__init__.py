"""The frameworks that models are written in; nothing else imports one."""
