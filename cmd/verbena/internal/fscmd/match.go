package fscmd

import "io/fs"

// Glob returns the paths below the root of a file system that match a pattern as hdfs dfs has them.
func Glob(root fs.FS, pattern string) ([]string, error) { return globIn(root, pattern) }
