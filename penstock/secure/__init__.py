"""What `penstock init --secure` makes: certificates, settings and rules for devices that are not to be trusted."""
