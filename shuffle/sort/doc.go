// Package sort is the distributed sort: processes read parts of files, send each record to
// the one that has its range of keys, sort what they get, in memory and in temporary files,
// and write their ranges into one output.
//
// The ranges come from a sample of the input. A key that is very frequent stays in one
// range, whose process then needs more time and disk, but not more memory.
package sort
