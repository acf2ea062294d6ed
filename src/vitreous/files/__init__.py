"""Files at the border: what strangers' files may be, how a user's files are written, how foreign text is shown."""
