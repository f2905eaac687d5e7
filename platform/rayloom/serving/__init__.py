"""Serving: a predictor without Ray, and the Ray Serve application around it."""
