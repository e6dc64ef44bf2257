"""The files of `penstock init --secure`: certificates, settings and rules for devices that are not trusted."""
