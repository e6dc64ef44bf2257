"""Addresses, sockets and certificates between a store and its users."""
