"""One file per dimension: the rules that turn a pipeline rank into the calls it should make."""
