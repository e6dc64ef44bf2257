"""The console's pages: HTML made on the server, which links and forms alone can operate; scripts only make it live."""
