"""How fast a language model trains here, beside the released recipe and a tuned one."""
