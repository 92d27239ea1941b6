"""``dtlab new``: a project of one's own around dtlab, which runs as it is. ``project/`` holds its scripts."""
