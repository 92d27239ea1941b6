"""Records of many runs: list them, compare two, find the one behind a checkpoint, hand them to MLflow."""
