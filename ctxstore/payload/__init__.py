"""Saved conversations: ``schema`` is the form that is written, ``upcasts`` the way to it, ``codec`` goes both ways."""
