"""unit/: no Ray. contract/: hand-offs and the audit on a real cluster. system/: whole commands and HTTP."""
