"""Applications for Ray Serve's own commands, one a module: `serve run serve_apps.NAME:app`."""
