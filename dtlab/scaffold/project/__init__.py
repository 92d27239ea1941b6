"""The scripts of a new project; they are copied, never imported from here."""
