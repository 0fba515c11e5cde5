"""The pool of actors: it starts, watches and restarts one actor per slot (GPU or CPU device)."""
